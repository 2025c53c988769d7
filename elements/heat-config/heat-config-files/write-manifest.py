"""Record in the image what was put into it; runs in the image's chroot.

write-manifest.py COLLECTED ELEMENTS VENV > manifest.json

One JSON object: `elements` (names), `programs` (element, file, group, target
and SHA-256 of each), `agent` (name and version of each distribution in the
agent's virtual environment, empty for distribution packages), `python`.
"""

import glob
import importlib.metadata
import json
import os
import platform
import sys


def main():
    """Print the manifest of this image."""
    collected, elements, venv = sys.argv[1:]
    with open(os.path.join(collected, "index.json"), encoding="utf-8") as stream:
        programs = json.load(stream)
    for program in programs:
        del program["stored"]
    site = glob.glob(os.path.join(venv, "lib", "python3.*", "site-packages"))
    agent = {
        found.metadata["Name"]: found.version
        for found in importlib.metadata.distributions(path=site)
    }
    manifest = {
        "agent": agent if site else {},
        "elements": sorted(elements.split()),
        "programs": programs,
        "python": platform.python_version(),
    }
    json.dump(manifest, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
