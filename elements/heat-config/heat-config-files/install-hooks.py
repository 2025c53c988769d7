"""Install the files that collect-hooks.py gathered; runs in the image's chroot.

install-hooks.py COLLECTED
"""

import importlib.util
import json
import py_compile
import shutil
import sys
from pathlib import Path

HOOKS = Path("/usr/libexec/heat-config/hooks")
LIBRARY = Path("/usr/libexec/heat-config/lib")


def main():
    """Copy each program to its target, 0755, and compile the libraries."""
    collected = Path(sys.argv[1])
    HOOKS.mkdir(parents=True, exist_ok=True)
    for entry in json.loads((collected / "index.json").read_text()):
        source, target = collected / entry["stored"], Path(entry["target"])
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            # The element heat-agent may have installed it already.
            shutil.copytree(source, target, copy_function=shutil.copyfile, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
            target.chmod(0o755)
    for module in LIBRARY.rglob("*.py"):
        compile_module(str(module))


def compile_module(module):
    """Compile a module without its docstrings, which are a tenth of the installed size."""
    try:
        py_compile.compile(
            module,
            importlib.util.cache_from_source(module),
            doraise=True,
            optimize=2,
            # "checked": an edited module takes effect at once, even with an old time stamp.
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )
    except py_compile.PyCompileError as error:
        sys.exit(f"heat-config: a library does not compile with the image's Python: {error.msg}")


if __name__ == "__main__":
    main()
