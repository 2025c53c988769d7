"""Gather the guest programs that the elements of an image declare.

    collect-hooks.py DESTINATION [HOOKS_DIRECTORY] < element array

Standard input is what diskimage-builder's `get_image_element_array` prints:
`[name]=path` words.  Each element may have a file `heat-config-hooks`; its
lines are `GROUP FILE` for a hook, `bin FILE TARGET` for any other program of
the guest, `lib PACKAGE` for a Python package that those import.  FILE and
PACKAGE are in HOOKS_DIRECTORY, else in `../../hooks` seen from the element.

Everything is checked here, on the host, where a mistake costs a second: each
finding is printed as one sentence, and the exit status is 1 if there are any.
DESTINATION gets the files, and `index.json` for the step in the chroot.
"""

import ast
import hashlib
import json
import re
import shlex
import sys
from pathlib import Path

DECLARATION = "heat-config-hooks"
GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
TARGET = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+")
PACKAGE = re.compile(r"[a-z][a-z0-9_]*")
HOOKS = "/usr/libexec/heat-config/hooks/"
LIBRARY = "/usr/libexec/heat-config/lib/"
AGENT = ("os-apply-config", "os-collect-config", "os-refresh-config")
AGENT_DEPENDENCY = "heat-agent"


class BadDeclaration(Exception):
    """An invalid line; the text gives the reason."""


def read_elements(text):
    """Return {name: folder} from `[name]=path` words, sorted by name."""
    pairs = (word[1:].split("]=", 1) for word in shlex.split(text))
    return {name: Path(path) for name, path in sorted(pairs)}


def read_line(line):
    """Return (file, target in the guest, group or None) for one line."""
    words = line.split()
    if words[0] == "bin":
        if len(words) != 3:
            raise BadDeclaration("expected 'bin FILE TARGET'")
        file, target, group = words[1], words[2], None
    elif words[0] == "lib":
        if len(words) != 2 or not PACKAGE.fullmatch(words[1]):
            raise BadDeclaration("expected 'lib PACKAGE'")
        file, target, group = words[1], LIBRARY + words[1], None
    else:
        if len(words) != 2:
            raise BadDeclaration("expected 'GROUP FILE'")
        group, file = words
        target = HOOKS + group
        if not GROUP.fullmatch(group):
            raise BadDeclaration(f"'{group}' cannot be the name of a group")
    if not FILE.fullmatch(file):
        raise BadDeclaration(f"'{file}' is not a plain file name")
    if not TARGET.fullmatch(target):
        raise BadDeclaration(f"'{target}' is not a plain absolute path")
    return file, target, group


def check_python(path, data):
    """Raise BadDeclaration unless `data` parses as Python."""
    try:
        ast.parse(data, str(path))
    except (SyntaxError, ValueError) as error:
        raise BadDeclaration(f"'{path}' is not valid Python: {error}") from None


def take_program(source, copy):
    """Check and copy one script; return its SHA-256."""
    if not source.is_file():
        raise BadDeclaration(f"there is no file '{source}'")
    data = source.read_bytes()
    first = data.split(b"\n", 1)[0]
    if not first.startswith(b"#!/"):
        raise BadDeclaration(f"'{source}' does not begin with '#!/'")
    if b"python" in first:
        check_python(source, data)
    copy.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def take_package(source, copy):
    """Check and copy the modules of a package; return one SHA-256 for all."""
    if not (source / "__init__.py").is_file():
        raise BadDeclaration(f"there is no Python package '{source}'")
    digest = hashlib.sha256()
    for module in sorted(source.rglob("*.py")):
        data = module.read_bytes()
        check_python(module, data)
        name = module.relative_to(source)
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def foreign_agents(elements):
    """Return a finding for each of the agent's elements that comes from another collection.

    tripleo-image-elements has elements of the same names, and the first in ELEMENTS_PATH is taken:
    an image with theirs has no unit, and nothing to run its phases with.
    """
    findings = []
    for name in AGENT:
        folder = elements.get(name)
        dependencies = folder / "element-deps" if folder else None
        if folder and not (
            dependencies.is_file() and AGENT_DEPENDENCY in dependencies.read_text().split()
        ):
            findings.append(
                f"the element '{name}' comes from '{folder.parent}', which cannot be used here; put"
                " the collection with 'heat-config' before that in ELEMENTS_PATH"
            )
    return findings


def collect(elements, destination, hooks_directory):
    """Copy everything declared to `destination`; return the list of findings."""
    findings, index, claimed = [], [], {}
    for name, folder in elements.items():
        declaration = folder / DECLARATION
        if not declaration.is_file():
            continue
        hooks = hooks_directory or folder.parent.parent / "hooks"
        for number, line in enumerate(declaration.read_text().splitlines(), 1):
            line = line.split("#", 1)[0].strip()
            if not line:
                continue
            try:
                file, target, group = read_line(line)
                other = claimed.get(target)
                if other:
                    raise BadDeclaration(f"element '{other}' already installs '{target}'")
                claimed[target] = name
                stored = f"{len(index):03}-{file}"
                take = take_package if line.split()[0] == "lib" else take_program
                digest = take(hooks / file, destination / stored)
            except BadDeclaration as error:
                findings.append(f"{declaration}:{number}: {error}")
                continue
            index.append(
                {
                    "element": name,
                    "file": file,
                    "group": group,
                    "sha256": digest,
                    "stored": stored,
                    "target": target,
                }
            )
    (destination / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    return findings


def main():
    """Collect; print the findings; exit 1 if there are any."""
    destination = Path(sys.argv[1])
    hooks_directory = Path(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2] else None
    destination.mkdir(parents=True)
    elements = read_elements(sys.stdin.read())
    findings = foreign_agents(elements) + collect(elements, destination, hooks_directory)
    for finding in findings:
        print(f"heat-config: {finding}", file=sys.stderr)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
