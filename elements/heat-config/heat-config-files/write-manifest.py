"""List what was put into the image; runs in the image's chroot.

write-manifest.py COLLECTED ELEMENTS VENV > manifest.json

One JSON object: `elements` (names), `programs` (element, file, group, target
and SHA-256 of each), `agent` (name and version of each distribution in the
agent's virtual environment, empty for distribution packages), `python`.
"""

import importlib.metadata
import json
import platform
import sys
from pathlib import Path


def main():
    """Print the manifest of this image."""
    collected, elements, venv = sys.argv[1:]
    programs = json.loads((Path(collected) / "index.json").read_text())
    for program in programs:
        del program["stored"]
    site = [str(path) for path in Path(venv).glob("lib/python3.*/site-packages")]
    agent = {
        distribution.metadata["Name"]: distribution.version
        for distribution in (importlib.metadata.distributions(path=site) if site else ())
    }
    manifest = {
        "agent": agent,
        "elements": sorted(elements.split()),
        "programs": programs,
        "python": platform.python_version(),
    }
    json.dump(manifest, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
