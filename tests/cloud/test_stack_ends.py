"""The end of a stack's action, of which Heat tells before it has stored it and released the stack.

See ``update_task`` and ``_persist_state`` of Heat's ``engine/stack.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from hotplate.cloud.cloud import Cloud
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template

#: Seconds by which Heat is late.
LATE = 0.5
GREETING = {
    "heat_template_version": "2018-08-31",
    "parameters": {"greeting": {"type": "string", "default": "hello"}},
    "outputs": {"greeting": {"value": {"get_param": "greeting"}}},
}


def late(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "status", "") != "IN_PROGRESS":
            time.sleep(LATE)
        return function(self, *args, **kwargs)

    return call


@pytest.fixture
def stack(cloud: Cloud) -> Stack:
    return Stack.create(cloud, Template(source="a test", template=GREETING)).wait()


def test_outputs_after_an_update_are_the_new_ones(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heat.engine import stack as of_heat

    monkeypatch.setattr(of_heat.Stack, "store", late(of_heat.Stack.store))
    stack.update(parameters={"greeting": "good night"}).wait()
    assert stack.outputs == {"greeting": "good night"}


def test_next_action_waits_for_the_release_of_the_stack(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heat.engine.stack_lock import StackLock

    monkeypatch.setattr(StackLock, "release", late(StackLock.release))
    for action in (stack.update, stack.update):
        assert action(parameters={"greeting": "hi"}).wait().status == "UPDATE_COMPLETE"
    for action in (stack.suspend, stack.resume):
        assert action().wait().state == "COMPLETE"
