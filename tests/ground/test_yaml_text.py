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
