"""Failures of Heat itself, which make a run say nothing about an image."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from heatclient import exc
from oslo_config import cfg
from test_at_once import PORT

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.heat import engine
from hotplate.errors import Outcome, outcome_of
from hotplate.events.log import EventLog


@pytest.fixture
def cloud(tmp_path: Any, compute: Any) -> Iterator[Cloud]:
    """A cloud that no other test has broken."""
    with Cloud(directory=tmp_path, compute=compute, events=EventLog()) as running:
        yield running


def test_engine_that_has_not_registered_itself_can_be_stopped(
    tmp_path: Any, compute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread for that is late on a busy host, and a refused template ends the run at once."""
    engine.load()
    monkeypatch.setattr("heat.engine.service.EngineService.service_manage_report", lambda _: None)
    with Cloud(directory=tmp_path, compute=compute, events=EventLog()) as running:
        assert running.events.fault is None


def test_late_answer_of_the_engine_is_a_fault(cloud: Any) -> None:
    assert cloud.events.fault is None
    cfg.CONF.set_override("rpc_response_timeout", 1)
    with (
        cloud.fault(endpoint="neutron", kind="hang", seconds=60),
        pytest.raises(exc.HTTPInternalServerError),
    ):
        cloud.heat().stacks.create(stack_name="late", template=PORT)
    assert "MessagingTimeout" in str(cloud.events.fault)
    assert outcome_of(cloud.events.fault) is Outcome.ERROR


def test_unusable_database_is_a_fault(cloud: Any) -> None:
    heat = cloud.heat()
    heat.software_configs.create(name="c", group="script", config="true")
    assert cloud.events.fault is None
    with contextlib.closing(sqlite3.connect(cloud.directory / "heat.db")) as database:
        database.execute("ALTER TABLE software_config RENAME TO gone")
        with pytest.raises(exc.HTTPInternalServerError):
            list(heat.software_configs.list())
        database.execute("ALTER TABLE gone RENAME TO software_config")
    assert "OperationalError" in str(cloud.events.fault)
    assert outcome_of(cloud.events.fault) is Outcome.ERROR


@pytest.mark.parametrize("first", ["oslo_messaging", "heat.engine.service"])
def test_process_that_has_loaded_services_already_is_told_so(first: str) -> None:
    """oslo.service chooses eventlet for whoever asks first, unless it was told (backend)."""
    code = f"import {first}; from hotplate.cloud.heat import engine; engine.load()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert re.search(r"^hotplate.errors.UsageError: .* before the cloud", done.stderr, re.MULTILINE)
