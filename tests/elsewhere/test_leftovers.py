"""The marks of a run in a cloud, and on its host."""

from __future__ import annotations

import pytest

from hotplate.cloud.heat import engine
from hotplate.elsewhere.leftovers import Run


def test_run_is_found_by_its_own_name_only():
    run = Run.begin()
    assert Run.of(run.name) == run
    assert run.is_of_this_host
    assert 0 <= run.age < 3600
    for name in ("hotplate", "hotplate-web", run.id, f"{run.name}-more", run.name.upper()):
        assert Run.of(name) is None, name


def test_server_name_is_whole_in_its_guest():
    """Heat names it STACK-RESOURCE-ID, and shortens what is longer than it may be."""
    # Heat's modules alone would choose eventlet for all tests that follow in this process.
    engine.load()
    from heat.common import config  # noqa: F401 - registers the option
    from heat.engine.resource import Resource
    from oslo_config import cfg

    name = f"{Run.begin().name}-database_server1-abcdefghijkl"
    assert Resource.reduce_physical_resource_name(name, cfg.CONF.max_server_name_length) == name


def test_run_goes_on_while_its_lock_is_held(tmp_path):
    run = Run.begin()
    assert not run.goes_on(tmp_path)
    with run.going_on(tmp_path):
        assert run.goes_on(tmp_path)
    assert not run.goes_on(tmp_path)
    assert not list(tmp_path.iterdir())


def test_run_of_another_host_is_not_of_this_host(monkeypatch):
    run = Run.begin()
    monkeypatch.setattr("socket.gethostname", lambda: "somewhere else")
    assert not run.is_of_this_host


@pytest.mark.parametrize("name", ["", "hotplate-", "hotplate-0000b70a1b012g", "hotplate-0000b7"])
def test_other_names_are_no_runs(name):
    assert Run.of(name) is None
