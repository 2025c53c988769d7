"""The element lint: a planted mistake for every rule, and none in our own elements."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotplate.image.plan import dib_elements_dir
from hotplate.lint.elements import Collection, lint

ROOT = Path(__file__).parents[2]


def write(root: Path, files: dict[str, str]) -> Path:
    """Write elements; a path with ``!`` at its end becomes executable."""
    elements = root / "elements"
    for name, text in files.items():
        path = elements / name.rstrip("!")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.endswith("!"):
            path.chmod(0o755)
    return elements


def messages(elements: Path, *, hooks: Path | None = None) -> list[str]:
    return [str(finding) for finding in lint(Collection(elements, hooks, (dib_elements_dir(),)))]


GOOD = {
    "good/README.rst": "good\n",
    "good/element-deps": "package-installs\nvm\n",
    "good/environment.d/10-good.bash": "export DIB_GOOD=${DIB_GOOD:-1}\n",
    "good/install.d/50-good!": "#!/bin/bash\n",
    "good/install.d/good-venv-install/60-more!": "#!/bin/bash\n",
    "good/package-installs.yaml": (
        "one:\ntwo:\n  phase: pre-install.d\n  build-only: true\n"
        "three:\n  - when: DIB_GOOD =\n    arch: amd64,arm64\n  - when: DIB_GOOD != 1\n"
        "four:\n  when:\n    - ARCH != i386\n    - DIB_GOOD = 1\n"
    ),
    "good/pkg-map": '{"family": {"debian": {"one": "uno"}}}',
    "good/good-choices": "a file of one's own\n",
    "good/heat-files/anything.txt": "a directory of one's own\n",
    "good/os-refresh-config/configure.d/50-good!": "#!/bin/bash\n",
}


def test_a_page_in_another_markup_is_nothing_wrong(tmp_path: Path):
    """Those of tripleo-image-elements are all README.md; diskimage-builder reads neither."""
    assert messages(write(tmp_path, {"a/README.md": "# a\n", "a/element-deps": "vm\n"})) == []


def test_nothing_is_reported_where_nothing_is_wrong(tmp_path: Path):
    assert messages(write(tmp_path, GOOD)) == []


SCRIPT = "#!/bin/bash\n"

MISTAKES = {
    "unknown key": ({"a/package-installs.yaml": "x:\n  fase: install.d\n"}, 'the key "fase"'),
    "underscore": ({"a/package-installs.yaml": "x:\n  not_arch: arm64\n"}, '"not_arch"'),
    "unknown phase": ({"a/package-installs.yaml": "x:\n  phase: instal.d\n"}, '"instal.d"'),
    "phase without packages": ({"a/package-installs.yaml": "x:\n  phase: root.d\n"}, '"root.d"'),
    "flag that is false": (
        {"a/package-installs.yaml": "x:\n  uninstall: false\n"},
        '"uninstall: False", which switches it on',
    ),
    "build-only no": ({"a/package-installs.yaml": "x:\n  build-only: no\n"}, '"build-only: False"'),
    "space in arch": (
        {"a/package-installs.yaml": 'x:\n  arch: "arm64, amd64"\n'},
        'space in "arch"',
    ),
    "both arch": ({"a/package-installs.yaml": "x:\n  arch: a\n  not-arch: b\n"}, "has both"),
    "in a list": ({"a/package-installs.yaml": "x:\n  - fase: install.d\n"}, '"fase"'),
    "no condition": ({"a/package-installs.yaml": "x:\n  when: ARCH\n"}, 'condition "ARCH"'),
    "no map": ({"a/package-installs.yaml": "x: yes please\n"}, "where a map is expected"),
    "not a map at all": ({"a/package-installs.yaml": "- x\n"}, "not a map of package names"),
    "json too": ({"a/package-installs.json": '{"x": {"fase": "y"}}'}, '"fase"'),
    "not yaml": ({"a/package-installs.yaml": "x: [\n"}, "not YAML"),
    "not json": ({"a/pkg-map": "{,}"}, "not JSON"),
    "json key twice": (
        {"a/pkg-map": '{"release": {"a": {}}, "release": {"b": {}}}'},
        'the key "release" appears twice',
    ),
    "deep json key twice": (
        {"a/pkg-map": '{"family": {"debian": {"x": "1", "x": "2"}}}'},
        'the key "x" appears twice',
    ),
    "yaml key twice": ({"a/package-installs.yaml": "x:\nx:\n"}, 'the key "x" appears twice'),
    "no default": (
        {"a/package-installs.yaml": "x:\n  when: DIB_NOWHERE = 1\n"},
        '"DIB_NOWHERE" has no default',
    ),
    "misspelt file": ({"a/elements-deps": "vm\n"}, 'is it "element-deps"?'),
    "misspelt directory": ({"a/post-instal.d/50-x!": SCRIPT}, "no phase has this name"),
    "unknown file": ({"a/element-depz": "vm\n"}, "nothing reads a file of this name"),
    "dot in name": ({"a/install.d/50-x.sh!": SCRIPT}, "dib-run-parts runs only names"),
    "no number": ({"a/install.d/x!": SCRIPT}, "no number of two digits"),
    "not executable": ({"a/install.d/50-x": SCRIPT}, "not executable, so it is not run"),
    "not executable, typed": ({"a/install.d/a-venv-install/50-x": SCRIPT}, "not executable"),
    "refresh not executable": ({"a/os-refresh-config/configure.d/50-x": SCRIPT}, "not executable"),
    "environment name": ({"a/environment.d/x.bash": ""}, "expected two digits"),
    "same hook": (
        {"a/install.d/50-x!": SCRIPT, "b/install.d/50-x!": SCRIPT},
        'b/install.d/50-x: the element "a" brings "install.d/50-x" too',
    ),
    "same environment": (
        {"a/environment.d/10-x": "", "b/environment.d/10-x": ""},
        '"environment.d/10-x" too',
    ),
    "same file deep down": (
        {
            "a/os-apply-config/etc/os-collect-config.conf": "1",
            "b/os-apply-config/etc/os-collect-config.conf": "2",
        },
        '"os-apply-config/etc/os-collect-config.conf" too',
    ),
    "no such element": ({"a/element-deps": "no-such-element\n"}, 'no element "no-such-element"'),
    "dependency twice": ({"a/element-deps": "vm\nvm\n"}, '"vm" appears twice'),
    "comment that provides": ({"a/element-provides": "x # why\n"}, "a comment here"),
    "hook without program": ({"a/heat-config-hooks": "salt salt.py\n"}, 'no program "salt.py"'),
    "hook without file": ({"a/heat-config-hooks": "salt\n"}, "expected"),
    "relative path": ({"a/heat-config-hooks": "bin there usr/bin/x\n"}, "not an absolute path"),
    "group twice": (
        {"a/heat-config-hooks": "g there\n", "b/heat-config-hooks": "g there\n"},
        'the group "g" is in "a" too',
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_once(tmp_path: Path, mistake: str):
    files, sentence = MISTAKES[mistake]
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "there").touch()
    findings = messages(write(tmp_path, files), hooks=hooks)
    assert len(findings) == 1, findings
    assert sentence in findings[0]


def test_alternatives_may_bring_the_same_file(tmp_path: Path):
    elements = write(tmp_path, {f"{name}/install.d/50-x!": SCRIPT for name in "ab"})
    for name in "ab":
        (elements / name / "element-provides").write_text("block-device\n")
    assert messages(elements) == []


@pytest.mark.parametrize(
    ("target", "sentence"), [("nowhere", "not there"), ("../b/there", "copied as a link")]
)
def test_links(tmp_path: Path, target: str, sentence: str):
    elements = write(tmp_path, {"a/README.rst": "", "b/README.rst": "", "b/there": ""})
    (elements / "b" / "there").rename(elements / "b" / "README.rst")
    (elements / "a" / "data").mkdir()
    (elements / "a" / "data" / "link").symlink_to(
        target if target == "nowhere" else "../../b/README.rst"
    )
    (finding,) = messages(elements)
    assert sentence in finding


def test_a_directory_link_at_the_top_is_followed_by_diskimage_builder(tmp_path: Path):
    elements = write(tmp_path, {"a/README.rst": "", "b/files/x": ""})
    (elements / "a" / "files-of-b").symlink_to("../b/files")
    assert messages(elements) == []


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "element-lint", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_our_own_elements_are_clean():
    done = run_tool()
    assert done.returncode == 0, done.stdout


def test_the_command_reports_and_fails(tmp_path: Path):
    elements = write(tmp_path, {"a/elements-deps": "vm\n"})
    done = run_tool(str(elements))
    assert done.returncode == 1
    assert done.stdout.startswith("a/elements-deps: ")


def test_wrong_usage(tmp_path: Path):
    assert run_tool(str(tmp_path / "none")).returncode == 2


def run_lint(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "element-lint", directory],
        capture_output=True,
        text=True,
    )


def test_elements_elsewhere_may_depend_on_ours_and_use_our_programs(tmp_path: Path):
    elements = write(
        tmp_path,
        {
            "mine/README.rst": "mine\n",
            "mine/element-deps": "heat-config\nvm\n",
            "mine/heat-config-hooks": "mine script.py\n",
        },
    )
    done = run_lint(elements)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_mistake_in_them_is_reported_too(tmp_path: Path):
    elements = write(
        tmp_path,
        {"mine/element-deps": "heat-confgi\n", "mine/heat-config-hooks": "mine none.py\n"},
    )
    done = run_lint(elements)
    assert done.returncode == 1
    assert 'there is no element "heat-confgi"' in done.stdout
    assert 'there is no program "none.py"' in done.stdout


def test_the_line_of_the_page_on_hooks_finds_nothing():
    """docs/writing-hooks.rst has it."""
    assert run_lint(ROOT / "docs" / "examples" / "hook" / "elements").returncode == 0
