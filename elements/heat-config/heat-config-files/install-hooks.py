"""Install what collect-hooks.py gathered; runs in the image's chroot.

install-hooks.py COLLECTED
"""

import compileall
import json
import os
import py_compile
import shutil
import sys

LIBRARY = "/usr/libexec/heat-config/lib"


def main():
    """Copy each program to its target, 0755, and compile the libraries."""
    collected = sys.argv[1]
    with open(os.path.join(collected, "index.json"), encoding="utf-8") as stream:
        index = json.load(stream)
    os.makedirs("/usr/libexec/heat-config/hooks", exist_ok=True)
    for entry in index:
        source = os.path.join(collected, entry["stored"])
        os.makedirs(os.path.dirname(entry["target"]), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, entry["target"], copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, entry["target"])
            os.chmod(entry["target"], 0o755)
    # "checked": an edited module counts at once, whatever its time stamp.
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    if not compileall.compile_dir(LIBRARY, quiet=1, invalidation_mode=mode):
        sys.exit("heat-config: a library does not compile with the image's Python")


if __name__ == "__main__":
    main()
