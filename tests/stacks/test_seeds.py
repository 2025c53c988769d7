"""The seeds' templates equal the originals; only lost indentation was restored."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hotplate.stacks import template

SEEDS = Path(__file__).parents[1] / "seeds"


def bare(path: Path, *, without: tuple[str, ...] = ()) -> list[str]:
    """Return the lines of a file without indentation and quote marks."""
    lines = [line.strip().removeprefix(">").strip() for line in path.read_text().splitlines()]
    return [line for line in lines if line not in without]


@pytest.mark.parametrize(
    ("restored", "original"),
    [
        ("wait-condition/waitcondition_test.template", "wait-condition/original.txt"),
        ("nested-server/server.yaml", "nested-server/server.original.txt"),
        ("nested-server/server-2.yaml", "nested-server/server-2.original.txt"),
        ("nested-server/env.yaml", "nested-server/env.original.txt"),
        ("nested-server/environment.d/default.yaml", "nested-server/default.original.txt"),
    ],
)
def test_only_indentation_was_restored(restored, original):
    elided = ("...",)
    assert bare(SEEDS / restored) == bare(SEEDS / original, without=elided)
    assert yaml.safe_load((SEEDS / restored).read_text())


def test_quoted_snippet_is_in_its_template():
    lines = bare(SEEDS / "puppet-deployment" / "original.txt")
    whole = bare(SEEDS / "puppet-deployment" / "template.yaml")
    start = whole.index(lines[0])
    assert whole[start : start + len(lines)] == lines


def test_cfn_template_without_a_version_gets_the_default_of_its_time():
    path = SEEDS / "wait-condition" / "waitcondition_test.template"
    loaded = template.load(path)
    assert loaded.template["HeatTemplateFormatVersion"] == "2012-12-12"
    assert loaded.template["Resources"] == yaml.safe_load(path.read_text())["Resources"]
