"""Runs pytest with the plug-in inside of a test, as somebody's repository would."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester, monkeypatch, tmp_path):
    """A repository of somebody's, whose artefacts and cache are its own."""
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini(
        "[pytest]\naddopts = -p no:cacheprovider -p no:xdist --import-mode=importlib\n"
    )
    return pytester
