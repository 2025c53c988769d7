"""Fetch images from object stores, and print the results, a line of JSON for each.

Run by a Python with fsspec and the packages for the URLs: ``object_store_client.py CACHE``. Each
line of standard input is a JSON object: ``url``, and ``part``, a file with the part of an earlier
attempt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hotplate.errors import HotplateError
from hotplate.image import image_set, image_url
from hotplate.image.checksum import hash_file
from hotplate.image.image_store import FOLDER, PART, ImageStore


def main() -> None:
    cache = Path(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(fetched(cache, json.loads(line))), flush=True)


def fetched(cache: Path, words: dict[str, str]) -> dict[str, object]:
    image = image_set.of_url(words["url"])
    blocks = 0

    def count() -> None:
        nonlocal blocks
        blocks += 1

    try:
        image = image_url.versioned(image)
        if "part" in words:
            part = cache / FOLDER / f"{image.key}{PART}"
            part.mkdir(parents=True)
            (part / image.name).write_bytes(Path(words["part"]).read_bytes())
        fetch = image_url.fetch_with(image, check=count)
        with ImageStore(cache).use(image, fetch) as file:
            return {"sha256": hash_file(file), "blocks": blocks, "key": image.key}
    except HotplateError as error:
        return {"error": type(error).__name__, "message": error.message}


if __name__ == "__main__":
    main()
