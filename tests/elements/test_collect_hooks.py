"""Gathering the declared programs of an image's elements; every error is named, on the host."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from programs import completed

ROOT = Path(__file__).resolve().parents[2]
COLLECT = ROOT / "elements/heat-config/heat-config-files/collect-hooks.py"


class Collection:
    """A folder of elements with hooks/ beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hooks = root / "hooks"
        self.hooks.mkdir()
        self.result = root / "collected"
        self.elements: dict[str, Path] = {}
        self.program("tool.py", "#!/usr/bin/python3\nprint()\n")

    def program(self, name: str, text: str) -> None:
        (self.hooks / name).write_text(text)

    def element(self, name: str, declaration: str | None) -> None:
        folder = self.root / "elements" / name
        folder.mkdir(parents=True)
        self.elements[name] = folder
        if declaration is not None:
            (folder / "heat-config-hooks").write_text(declaration)

    def collect(self, hooks: Path | None = None) -> "subprocess.CompletedProcess[str]":
        words = " ".join(f"[{name}]={path}" for name, path in self.elements.items())
        return completed([sys.executable, COLLECT, self.result, str(hooks or "")], input=words)

    def index(self) -> list[dict[str, str | None]]:
        return json.loads((self.result / "index.json").read_text())


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection(tmp_path)


def test_hooks_programs_and_packages_are_gathered(collection: Collection) -> None:
    collection.element("plain", None)
    collection.element("heat-config-tool", "# comment\n\ntool tool.py  # the hook\n")
    collection.element(
        "heat-config",
        "bin tool.py /usr/local/bin/tool\nbin tool.py /usr/libexec/heat-config/lib/tool\n"
        "lib some_package\nlib other\n",
    )
    for package in ("some_package", "other"):
        (collection.hooks / package / "inner").mkdir(parents=True)
        (collection.hooks / package / "__init__.py").write_text("")
        (collection.hooks / package / "inner/module.py").write_text("X = 1\n")
    result = collection.collect()
    assert (result.returncode, result.stderr) == (0, "")
    assert [(entry["group"], entry["target"]) for entry in collection.index()] == [
        (None, "/usr/local/bin/tool"),
        (None, "/usr/libexec/heat-config/lib/tool"),
        (None, "/usr/libexec/heat-config/lib/some_package"),
        (None, "/usr/libexec/heat-config/lib/other"),
        ("tool", "/usr/libexec/heat-config/hooks/tool"),
    ]
    hook = collection.index()[4]
    stored = collection.result / str(hook["stored"])
    assert stored.read_text() == (collection.hooks / "tool.py").read_text()
    assert hook["sha256"] == hashlib.sha256(stored.read_bytes()).hexdigest()
    package = collection.result / str(collection.index()[2]["stored"])
    assert (package / "inner/module.py").read_text() == "X = 1\n"


def test_other_folder_of_hooks_is_used(collection: Collection, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tool.py").write_text("#!/bin/sh\necho other\n")
    collection.element("heat-config-tool", "tool tool.py\n")
    assert collection.collect(other).returncode == 0
    assert "other" in (collection.result / str(collection.index()[0]["stored"])).read_text()


@pytest.mark.parametrize(
    ("declaration", "sentence"),
    [
        ("tool missing.py", "there is no file"),
        ("tool ../../etc/passwd", "'../../etc/passwd' is not a plain file name"),
        ("../tool tool.py", "'../tool' cannot be the name of a group"),
        ("tool", "expected 'GROUP FILE'"),
        ("tool tool.py extra", "expected 'GROUP FILE'"),
        ("bin tool.py", "expected 'bin FILE TARGET'"),
        ("bin tool.py usr/bin/tool", "'usr/bin/tool' is not a plain absolute path"),
        ("bin tool.py /usr/../etc/tool", "'/usr/../etc/tool' is not a plain absolute path"),
        ("lib no-package", "expected 'lib PACKAGE'"),
        ("lib nowhere", "there is no Python package"),
        ("tool broken.py", "'broken.py' is not valid Python"),
        ("tool text.txt", "'text.txt' does not begin with '#!/'"),
    ],
)
def test_error_stops_the_build_with_a_sentence(
    collection: Collection, declaration: str, sentence: str
) -> None:
    collection.program("broken.py", "#!/usr/bin/python3\nif:\n")
    collection.program("text.txt", "text\n")
    collection.element("heat-config-tool", f"# first\n{declaration}\n")
    result = collection.collect()
    assert result.returncode == 1
    assert f"heat-config-hooks:2: {sentence}" in result.stderr.replace(f"{collection.hooks}/", "")


def test_two_elements_cannot_bring_the_same_hook(collection: Collection) -> None:
    collection.element("a", "tool tool.py\n")
    collection.element("b", "tool tool.py\n")
    result = collection.collect()
    assert result.returncode == 1
    assert "element 'a' already installs" in result.stderr


def test_all_errors_are_named_at_once(collection: Collection) -> None:
    collection.element("a", "one missing\ntwo missing\n")
    assert len(collection.collect().stderr.splitlines()) == 2


def test_this_collection_is_valid(tmp_path: Path) -> None:
    """Every heat-config-hooks file of this tree can be read."""
    collection = Collection(tmp_path)
    for path in (ROOT / "elements").iterdir():
        if path.is_dir():
            collection.elements[path.name] = path
    result = collection.collect()
    assert (result.returncode, result.stderr) == (0, "")


def test_agent_of_another_collection_is_named(collection: Collection) -> None:
    """Those of tripleo-image-elements, found first, make an image without a unit."""
    collection.element("os-collect-config", None)
    (collection.elements["os-collect-config"] / "element-deps").write_text("os-svc-install\n")
    collection.element("os-apply-config", None)
    ours = ROOT / "elements/os-refresh-config"
    collection.elements["os-refresh-config"] = ours
    result = collection.collect()
    assert result.returncode == 1
    theirs = collection.root / "elements"
    assert result.stderr.splitlines() == [
        f"heat-config: the element '{name}' comes from '{theirs}', which cannot be used here; put"
        " the collection with 'heat-config' before that in ELEMENTS_PATH"
        for name in ("os-apply-config", "os-collect-config")
    ]
