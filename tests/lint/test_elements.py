"""The element lint: a planted mistake for every rule, and none in our own elements."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotplate.errors import UsageError
from hotplate.image.plan import dib_elements_dir
from hotplate.lint.collection import Collection
from hotplate.lint.elements import element_findings


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
    """Return the findings as sentences; each must have a fix, and a rule of this lint."""
    findings = element_findings(Collection(elements, hooks, (dib_elements_dir(),)))
    assert all(each.mend and each.rule.startswith("element/") for each in findings)
    return [f"{each.file.relative_to(elements)}: {each.reason}" for each in findings]


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


def test_page_in_another_markup_is_accepted(tmp_path: Path):
    """The pages of tripleo-image-elements are all README.md; diskimage-builder reads neither."""
    assert messages(write(tmp_path, {"a/README.md": "# a\n", "a/element-deps": "vm\n"})) == []


def test_correct_elements_have_no_findings(tmp_path: Path):
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
    "no number": ({"a/install.d/x!": SCRIPT}, "counts as 0, so this runs"),
    "not executable": ({"a/install.d/50-x": SCRIPT}, "not executable, so it is not run"),
    "not executable, typed": ({"a/install.d/a-venv-install/50-x": SCRIPT}, "not executable"),
    "refresh not executable": ({"a/os-refresh-config/configure.d/50-x": SCRIPT}, "not executable"),
    "environment name": ({"a/environment.d/x.bash": ""}, "counts as 0, so this is read"),
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
    "comment that depends": ({"a/element-deps": "vm\n# why\n"}, 'reads "# why"'),
    "two on a line": ({"a/element-deps": "vm  manifests\n"}, 'one name from a line, here "vm  m'),
    "two provided": ({"a/element-provides": "x y\n"}, 'one name from a line, here "x y"'),
    "hook without program": ({"a/heat-config-hooks": "salt salt.py\n"}, 'no program "salt.py"'),
    "hook without file": ({"a/heat-config-hooks": "salt\n"}, "expected"),
    "relative path": ({"a/heat-config-hooks": "bin there usr/bin/x\n"}, "not an absolute path"),
    "group twice": (
        {"a/heat-config-hooks": "g there\n", "b/heat-config-hooks": "g there\n"},
        'the group "g" is in "a" too',
    ),
}


NO_MISTAKES = {
    "data in a phase, which a script there installs": {
        "a/install.d/50-x!": "#!/bin/bash\ninstall -m 0755 $(dirname $0)/x.sh /usr/bin/x\n",
        "a/install.d/x.sh!": SCRIPT,
        "a/install.d/x.service": "[Unit]\n",
    },
    "more than two digits": {"a/cleanup.d/100-x!": SCRIPT},
    "a directory of its own": {"a/udev.d/x": "", "a/yum.repos.d/x": "", "a/init.d/50-x": ""},
    "one that a script names": {
        "a/install.d/50-x!": "#!/bin/bash\ncp -r $_LIB/finalize.d /etc\n",
        "a/finalize.d/x": "",
    },
    "two systems, of which an image has one": {
        f"{name}/environment.d/{file}": "export DISTRO_NAME=x\n"
        for name in "ab"
        for file in ("10-name.bash", "11-yum.bash")
    },
    "data among programs": {"a/bin/words.txt": "one\n"},
}


@pytest.mark.parametrize("case", NO_MISTAKES)
def test_apparent_mistake_is_accepted(tmp_path: Path, case: str):
    """Each occurs in elements of diskimage-builder or tripleo-image-elements."""
    assert messages(write(tmp_path, NO_MISTAKES[case])) == []


LINES = {
    "when": ({"a/package-installs.yaml": "y:\nx:\n  when: DIB_NOWHERE = 1\n"}, 3),
    "package": ({"a/package-installs.yaml": "y:\nx:\n  fase: y\n"}, 2),
    "json": ({"a/pkg-map": "{\n,}"}, 2),
    "yaml": ({"a/svc-map": "x:\n  y: 1\n  y: 2\n"}, 3),
    "dependency": ({"a/element-deps": "\nvm\nnone-such\n"}, 3),
    "hook": ({"a/heat-config-hooks": "# why\nsalt\n"}, 2),
    "a whole file": ({"a/install.d/50-x": SCRIPT}, None),
}


@pytest.mark.parametrize("case", LINES)
def test_finding_names_its_line(tmp_path: Path, case: str):
    files, line = LINES[case]
    elements = write(tmp_path, files)
    (finding,) = element_findings(Collection(elements, None, (dib_elements_dir(),)))
    assert finding.line == line


@pytest.mark.parametrize(
    "name", ["pkg-map", "element-deps", "element-provides", "heat-config-hooks"]
)
def test_file_that_is_not_utf_8_is_a_finding(tmp_path: Path, name: str):
    elements = write(tmp_path, {"a/README.rst": "a\n"})
    (elements / "a" / name).write_bytes(b"na\xefve")
    findings = element_findings(Collection(elements, None, (dib_elements_dir(),)))
    assert ["no text in UTF-8" in each.reason for each in findings].count(True) == 1


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_once(tmp_path: Path, mistake: str):
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
def test_dangling_links_are_findings(tmp_path: Path, target: str, sentence: str):
    elements = write(tmp_path, {"a/README.rst": "", "b/README.rst": "", "b/there": ""})
    (elements / "b" / "there").rename(elements / "b" / "README.rst")
    (elements / "a" / "data").mkdir()
    (elements / "a" / "data" / "link").symlink_to(
        target if target == "nowhere" else "../../b/README.rst"
    )
    (finding,) = messages(elements)
    assert sentence in finding


def test_directory_link_at_the_top_is_followed_by_diskimage_builder(tmp_path: Path):
    elements = write(tmp_path, {"a/README.rst": "", "b/files/x": ""})
    (elements / "a" / "files-of-b").symlink_to("../b/files")
    assert messages(elements) == []


def test_single_element_is_checked_without_its_neighbours(tmp_path: Path):
    elements = write(
        tmp_path, {"a/element-deps": "b\n", "b/elements-deps": "", "b/install.d/x": ""}
    )
    alone = Collection.at(elements / "a", hooks=None, others=())
    assert ([*alone.elements], element_findings(alone)) == ([elements / "a"], [])


@pytest.mark.parametrize(
    ("path", "sentence"), [("none", "is not a directory"), (".", "neither an element nor")]
)
def test_path_without_elements_is_refused(tmp_path: Path, path: str, sentence: str):
    with pytest.raises(UsageError, match=sentence):
        Collection.at(tmp_path / path, hooks=None, others=())
