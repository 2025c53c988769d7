"""Every docstring example is run by a test, except those marked +SKIP."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = {
    "hotplate.events.classify",
    "hotplate.cases.cluster.brought",
    "hotplate.cases.case_run",
    "hotplate.cases.table",
    "hotplate.cases.images",
    "hotplate.cases.releases",
    "hotplate.cases.cluster.abilities",
    "hotplate.cases.cluster.plain",
    "hotplate.cases.cluster.scheduler",
    "hotplate.stacks.builtin",
    "hotplate.cloud.glance.images",
    "hotplate.cloud.http.addresses",
    "hotplate.cloud.neutron.allocation",
    "hotplate.cloud.nova.flavors",
    "hotplate.cloud.nova.network",
    "hotplate.elsewhere.console_text",
    "hotplate.elsewhere.marks",
    "hotplate.elsewhere.refusals",
    "hotplate.elsewhere.tree",
    "hotplate.hookkit.contract_configs",
    "hotplate.hookkit.push",
    "hotplate.hookkit.run",
    "hotplate.network.frames",
    "hotplate.plugin.options",
    "hotplate.shard",
    "hotplate.text",
    "hotplate.timing.deadline",
    "hotplate.trial.subject",
    "hotplate.verdict.unit_names",
}
"""Modules whose examples need no fixtures."""

ELSEWHERE = {
    "tests/cloud/test_docstrings.py": {
        "hotplate.guest.base",
        "hotplate.stacks.deployment",
        "hotplate.stacks.stack",
    },
    "tests/plugin/test_docstrings.py": {"hotplate.guest.driver", "hotplate.plugin.server"},
}


def modules_with_examples() -> set[str]:
    """Return the modules that have an example without +SKIP."""
    names = set()
    for path in (ROOT / "hotplate").rglob("*.py"):
        lines = (line.strip() for line in path.read_text().splitlines())
        if any(line.startswith(">>> ") and "+SKIP" not in line for line in lines):
            names.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return names


@pytest.mark.parametrize("name", sorted(HERE))
def test_docstring_examples_pass(name: str) -> None:
    tried = doctest.testmod(importlib.import_module(name))
    assert tried.attempted
    assert tried.failed == 0


def test_every_docstring_example_is_run():
    assert modules_with_examples() == HERE.union(*ELSEWHERE.values())
    for path, names in ELSEWHERE.items():
        text = (ROOT / path).read_text()
        assert all(name.rpartition(".")[2] in text for name in names)
