"""Warn of variables in the environment that look like ours and that no element reads.

    check-variables.py < element array

Standard input is what diskimage-builder's `get_image_element_array` prints: `[name]=path` words.
A variable is known when a file of an element beside those has its name, so that an environment
can be shared by the builds of several images.  diskimage-builder itself ignores unknown ones.
"""

import difflib
import os
import re
import shlex
import sys
from pathlib import Path

PREFIXES = ("DIB_HEAT_", "DIB_OFFSET_", "DIB_APT_ARCHIVE_")
NAME = re.compile(rb"\b(?:%s)[A-Z0-9_]*[A-Z0-9]" % "|".join(PREFIXES).encode())
#: Bytes of a file to read; scripts have fewer.
MAX_BYTES = 100_000


def known_variables(collection):
    """Return the names of ours in the files of a directory of elements."""
    names = set()
    for directory, _, files in os.walk(collection):
        for file in files:
            try:
                with Path(directory, file).open("rb") as stream:
                    names.update(NAME.findall(stream.read(MAX_BYTES)))
            except OSError:
                continue
    return {name.decode() for name in names}


def nearest(name, known):
    """Return the known name that is meant, or ""; the prefix, which all have, does not count."""
    prefix = next(each for each in PREFIXES if name.startswith(each))
    ends = [each[len(prefix) :] for each in sorted(known) if each.startswith(prefix)]
    near = difflib.get_close_matches(name[len(prefix) :], ends, n=1)
    return prefix + near[0] if near else ""


def main():
    """Print a warning for each such variable."""
    ours = sorted(name for name in os.environ if name.startswith(PREFIXES))
    if not ours:
        return
    paths = [Path(word.split("]=", 1)[1]) for word in shlex.split(sys.stdin.read())]
    known = set().union(*map(known_variables, {path.parent for path in paths}))
    for name in ours:
        if name not in known:
            meant = nearest(name, known)
            hint = f"; did you mean {meant}?" if meant else ""
            print(f"heat-config: warning: no element reads {name}{hint}", file=sys.stderr)


if __name__ == "__main__":
    main()
