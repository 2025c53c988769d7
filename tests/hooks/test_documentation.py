"""Every group, variable, setting and option is documented: in docs/hooks.rst, else in a README."""

import ast
import re
from pathlib import Path

import pytest
from heat_config.settings import NUMBERS

ROOT = Path(__file__).resolve().parents[2]
HOOKS = ROOT / "hooks"
PAGE = (ROOT / "docs" / "hooks.rst").read_text()
READMES = "".join(path.read_text() for path in sorted(ROOT.glob("elements/*/README.rst")))

GROUPS = {
    group: HOOKS / file
    for path in sorted(ROOT.glob("elements/*/heat-config-hooks"))
    for group, file, *more in (
        line.split() for line in path.read_text().splitlines() if line and line[0] != "#"
    )
    if not more and group not in ("lib", "bin")
}
#: Between the runner and its hooks, or for tests.
TESTS_ONLY = {"HEAT_CONFIG_LIB", "HEAT_CONFIG_CAPTURE"}


def strings(path: Path) -> set[str]:
    """Return every text in a Python file."""
    nodes = ast.walk(ast.parse(path.read_text()))
    constants = (each.value for each in nodes if isinstance(each, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


@pytest.mark.parametrize("group", GROUPS)
def test_group_has_a_row_and_a_place(group):
    assert f"``{group}``" in PAGE


@pytest.mark.parametrize("group", GROUPS)
def test_variables_of_a_hook_are_documented(group):
    for name in strings(GROUPS[group]) - TESTS_ONLY:
        if re.fullmatch(r"(HEAT|SALT)_[A-Z_]+", name):
            assert f"``{name}``" in PAGE + READMES, name


def test_variables_of_the_runner_are_documented():
    texts = strings(HOOKS / "heat_config" / "settings.py") - TESTS_ONLY
    names = {name for name in texts if re.fullmatch(r"HEAT_[A-Z_]+", name)}
    assert len(names) > 5
    assert [name for name in sorted(names) if f"``{name}``" not in PAGE] == []


def test_settings_of_the_runner_are_documented_with_their_defaults():
    for key, value in NUMBERS.items():
        assert re.search(rf"^``{key}`` +{value:.0f} ", PAGE, re.MULTILINE), key


@pytest.mark.defect("K17")
@pytest.mark.parametrize("group", GROUPS)
def test_options_of_a_hook_are_documented(group):
    text = GROUPS[group].read_text()
    names = set(re.findall(r'options\.get\(\s*"(\w+)"', text))
    for call in re.findall(r"tools\.(?:flag|joined)\(\s*deployment,((?:\s*\"\w+\",)+)", text):
        names.update(re.findall(r'"(\w+)"', call))
    readme = ROOT / "elements" / f"heat-config-{group.removesuffix('-solo')}" / "README.rst"
    assert [name for name in sorted(names) if f"``{name}" not in PAGE + readme.read_text()] == []


def test_every_defect_has_a_test_and_every_marker_a_defect():
    page = (ROOT / "docs" / "defects.rst").read_text()
    listed = re.findall(r"^   \* - ([A-Z]\d+)$", page, re.MULTILINE)
    marked = {
        argument.value
        for path in (ROOT / "tests").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.defect"
        for argument in call.args
    }
    assert len(listed) > 50
    assert sorted(listed) == sorted(marked)
