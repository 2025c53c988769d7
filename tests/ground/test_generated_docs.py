"""docs/generated.py: the pages match the sources and are complete on a forge."""

import argparse
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from hotplate.cli import VERBS
from hotplate.verdict.stages import DEPLOYED

DOCS = Path(__file__).resolve().parents[2] / "docs"
ONLY_SPHINX = re.compile(r"^\s*\.\. (literalinclude|include|auto\w+)::", re.MULTILINE)


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_pages_are_current(generated):
    assert generated.stale() == [], "run: python docs/generated.py, and commit what it changes"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.rst")), ids=lambda page: page.name)
def test_page_is_complete_on_a_forge(page):
    assert not ONLY_SPHINX.search(page.read_text())


def test_changed_source_is_detected(generated):
    page = (DOCS / "troubleshooting.rst").read_text()
    assert "systemctl status os-collect-config" in page
    spoiled = page.replace("systemctl status os-collect-config", "systemctl", 1)
    assert generated.filled(spoiled) == page


def test_question_keeps_its_mark(generated):
    assert generated.sentence("what does it wait for?") == "What does it wait for?"
    assert generated.sentence("look at *") == "Look at \\*."


def test_pages_list_all_verbs_settings_fixtures_and_elements(generated):
    commands = (DOCS / "commands.rst").read_text()
    assert [verb for verb in VERBS if f"\nhotplate {verb}\n" not in commands] == []
    assert "``--pause-on-fail``" in commands and "\nhotplate hook check\n" in commands
    settings = (DOCS / "settings.rst").read_text()
    words = ("HOTPLATE_PATIENCE", "DIB_HEAT_PUPPET_PACKAGE", "HEAT_SCRIPT_WORKING")
    assert [word for word in words if f"``{word}``" not in settings] == []
    elements = (DOCS / "elements.rst").read_text()
    folders = [path.parent.name for path in DOCS.parent.glob("elements/*/README.rst")]
    assert [name for name in folders if f"`{name} <../elements/{name}/" not in elements] == []
    assert "``booted_server``" in (DOCS / "api.rst").read_text()


def test_option_with_suppressed_help_is_left_out(generated):
    """argparse leaves it out of --help as well (argparse.SUPPRESS)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shown", help="what it does")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    table = generated._arguments(parser)
    assert "--shown" in table
    assert "hidden" not in table
    assert "SUPPRESS" not in table


def test_loop_picture_has_every_stage_in_light_and_dark(generated):
    picture = ElementTree.fromstring(generated.PICTURE.read_text())
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in set(DEPLOYED)] == list(DEPLOYED)
    light, dark = generated.loop.STYLE.split("@media (prefers-color-scheme: dark)")
    painted = {*re.findall(r"^ +(\.?\w+) \{.*#", light, re.MULTILINE)}
    assert painted == {*re.findall(r"^ +(\.?\w+) \{.*#", dark, re.MULTILINE)}


def test_table_text_is_escaped_for_markup(generated):
    assert generated.sentence("look at *.cfg and --keep, not a`b") == (
        "Look at \\*.cfg and ``--keep``, not a\\`b."
    )


def test_element_variables_come_from_their_readme(generated):
    rows = {name: (element, fields) for name, element, fields in generated._documented()}
    element, fields = rows["DIB_HEAT_PUPPET_PACKAGE"]
    assert element == "heat-config-puppet"
    assert fields["Default"] == "the package of the distribution"
