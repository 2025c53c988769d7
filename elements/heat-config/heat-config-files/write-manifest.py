"""List the programs that were installed in the image; runs in the image's chroot.

write-manifest.py COLLECTED ELEMENTS > manifest.json

One JSON object: `elements` (names), `programs` (element, file, group, target
and SHA-256 of each), `python`.
"""

import json
import platform
import sys
from pathlib import Path


def main():
    """Print the manifest of this image."""
    collected, elements = sys.argv[1:]
    programs = json.loads((Path(collected) / "index.json").read_text())
    for program in programs:
        del program["stored"]
    manifest = {
        "elements": sorted(elements.split()),
        "programs": programs,
        "python": platform.python_version(),
    }
    json.dump(manifest, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
