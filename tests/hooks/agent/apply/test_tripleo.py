"""The templates and phases of tripleo-image-elements under our programs, beside upstream's.

Release 5.0.0 has the most of them: a hundred templates, those of a whole cloud.
"""

import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from heat_agent.apply import control, mustache
from heat_agent.refresh.scripts import scripts
from os_apply_config import apply_config
from programs import completed

pytestmark = pytest.mark.network

WANTED = (
    "tripleo-image-elements==5.0.0 --hash=sha256:"
    "50fb3463fe56627a133e64cc5688a623f5a1ceb5c2f9c3203cc3ead357ed62f5"
)
TEMPLATES = 90
SCRIPTS = 100


@pytest.fixture(scope="module")
def elements(fetch, tmp_path_factory):
    """The folder of all elements."""
    folder = tmp_path_factory.mktemp("elements")
    with zipfile.ZipFile(fetch(WANTED, "--only-binary")) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, folder))
            path.chmod(stat.S_IMODE(member.external_attr >> 16) or 0o755)
    (share,) = folder.glob("*/data/share/tripleo-image-elements")
    return share


def templates(elements):
    """All templates; their paths begin with os-apply-config/ of an element."""
    return sorted(
        path
        for path in elements.glob("*/os-apply-config/**/*")
        if path.is_file() and path.suffix != ".oac"
        if path.relative_to(elements).parts[0] != "os-apply-config"
    )


def filled(nodes, make):
    """Return a document in which each name that a parsed template uses has a value."""
    document = {}
    for node in nodes:
        if isinstance(node, str) or node[0] == ">" or node[1] == ".":
            continue
        inner = filled(node[2], make) if node[0] in "#^" and len(node) == 3 and node[2] else None
        *folders, last = node[1].split(".")
        place = document
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                break
        else:
            value = make(node[1], inner) if node[0] == "#" else make(node[1], None)
            place.setdefault(last, value)
            if inner:
                for name, each in inner.items():
                    document.setdefault(name, each)
    return document


WAYS = {
    "nothing": lambda _name, _inner: None,
    "texts": lambda name, inner: inner or f"<{name}> & 'ü'",
    "lists": lambda name, inner: [inner, {**inner, "more": 1}] if inner else [name, 1, None],
    "numbers": lambda _name, inner: inner or 7.5,
    "true": lambda _name, _inner: True,
}


@pytest.mark.parametrize("way", WAYS)
def test_each_template_gives_the_same_file(elements, way):
    compared = 0
    for path in templates(elements):
        if os.access(path, os.X_OK) and path.read_bytes().startswith(b"#!"):
            continue
        text = path.read_text()
        document = filled(mustache.parse(text), WAYS[way])
        ours = mustache.render(text, document, lambda _name: "")
        assert ours == apply_config.render_moustache(text, document), path
        compared += 1
    assert compared > TEMPLATES


def test_each_control_file_has_the_same_meaning(elements):
    files = sorted(elements.glob("*/os-apply-config/**/*.oac"))
    assert files
    for path in files:
        assert control.parse(path.read_text()) == (yaml.safe_load(path.read_text()) or {})


def test_programs_write_the_same_tree(elements, pair):
    for count, path in enumerate(templates(elements)):
        name = str(path.relative_to(elements).parent / path.name).split("/os-apply-config/", 1)[1]
        if path.read_bytes().startswith(b"#!"):
            pair.write(f"templates/{name}", path.read_bytes(), mode=0o755)
        else:
            pair.template(name, path.read_bytes(), "mode: 0640" if count % 3 == 0 else None)
    document = {}
    for path in templates(elements):
        document.update(filled(mustache.parse(path.read_text()), WAYS["texts"]))
    pair.metadata(document)
    ours, theirs = pair.apply()
    assert (ours.status, theirs.status) == (0, 0), ours.stderr
    assert ours.tree == theirs.tree
    assert len(ours.tree) > TEMPLATES


def test_phase_scripts_have_the_same_order(elements, tmp_path):
    phase = tmp_path / "configure.d"
    phase.mkdir()
    for path in elements.glob("*/os-refresh-config/*.d/*"):
        (phase / path.name).write_bytes(b"")
        (phase / path.name).chmod(0o755)
    listed = completed(
        [Path(sys.executable).with_name("dib-run-parts"), "--list", phase],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        check=True,
    )
    expected = [Path(path).name for path in listed.stdout.split()]
    assert scripts(str(phase)) == expected
    assert len(expected) > SCRIPTS
