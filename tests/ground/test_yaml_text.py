"""All that PyYAML raises is an error of YAML."""

from __future__ import annotations

import pytest
import yaml

from hotplate import yaml_text


@pytest.mark.parametrize(
    "text", ["[" * 3000, "!!int ''", "!!bool x", "!!timestamp x", "!!float 1:::", "a: 2024-99-99"]
)
def test_fault_of_any_kind_is_an_error_of_yaml(text: str):
    with pytest.raises(yaml.YAMLError):
        yaml_text.load(text)


def test_error_of_yaml_keeps_its_place():
    with pytest.raises(yaml.YAMLError, match="line 2, column"):
        yaml_text.load("a: b\n]")


def _laughs(alias: str) -> str:
    """Return lines of which each stands for nine times the one before it."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {alias % ', '.join([f'*a{n - 1}'] * 9)}" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        _laughs("[%s]"),
        _laughs("{<<: [%s]}"),
        f"a: &a {'x' * 100_000}\nb: [{'*a,' * 1000}]",
        "a: " + "[" * 201 + "]" * 201,
        "a: &a {x: *a}",
        "&a [*a]",
    ],
    ids=["list", "merge", "text", "deep", "self", "self-root"],
)
def test_text_that_expands_without_a_limit_is_refused(text: str):
    with pytest.raises(yaml_text.ExpansionError):
        yaml_text.load(text)


def test_aliases_and_deep_maps_of_usual_sizes_are_read():
    assert yaml_text.load("a: &a {x: 1}\nb: {<<: *a, y: [*a, *a]}")["b"] == {
        "x": 1,
        "y": [{"x": 1}, {"x": 1}],
    }
    assert yaml_text.load("[" * 200 + "]" * 200)


def test_large_text_without_aliases_is_read(monkeypatch):
    # One that exceeds the real limit takes PyYAML seconds.
    monkeypatch.setattr(yaml_text, "MAX_GROWTH", 8 << 10)
    assert len(yaml_text.load(f"[{'0,' * 3000} {'x' * 9000}]")) == 3001
