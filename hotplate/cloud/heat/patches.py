"""All patches to Heat, and nothing else.

They change behaviour for which Heat has no option and no plug-in point.  A test checks that the
patched attributes of the installed Heat have the expected form.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock


class Waker:
    """Wakes each thread when there is news that it has not seen."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        # The last news that each thread has seen: news that comes while it looks must not be lost.
        self._own = threading.local()

    def notify(self) -> None:
        """Announce news."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def begin(self) -> None:
        """Mark all news so far as seen by a thread that begins."""
        self._own.seen = self._count

    def wait(self, seconds: float) -> None:
        """Wait for news that this thread has not seen, at most ``seconds``.

        The first wait of a thread that did not :meth:`begin` returns at once: it may have looked
        before the news.
        """
        with self._changed:
            seen = getattr(self._own, "seen", -1)
            self._changed.wait_for(lambda: self._count != seen, seconds)
            self._own.seen = self._count


class TaskWaker(Waker):
    """Wakes the engine's tasks when there is news that they may be waiting for.

    Heat's tasks poll once a second; a received signal need not wait for that, nor need resources
    that depend on one that is complete.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stopped = False

    def stop(self) -> None:
        """End every task that sleeps or is about to sleep, for good."""
        self._stopped = True
        self.notify()

    def wait(self, seconds: float) -> None:
        """Wait as any thread does.

        :raises SystemExit: when the engine is being stopped; ends the thread and nothing else.
        """
        super().wait(seconds)
        if self._stopped:
            # Heat uses this text as the reason of a stack and of its resource.
            raise SystemExit("the engine went down")


#: Maximum wait for a message of Heat's, in case one comes that :func:`apply` does not notice.
MESSAGE_SECONDS = 1.0


def apply(
    *,
    progress: TaskWaker,
    on_event: Callable[[object, object], None],
    on_deployments: Callable[[str, list[dict[str, object]]], None],
    on_failure: Callable[[Exception], None],
    guest_to_host: Callable[[str], str],
) -> ExitStack:
    """Patch Heat; closing the result restores it.

    :param on_event: called with (stack, event) after an event is stored.
    :param on_deployments: called with (server, configs) before a server is served deployments that
        differ from the last ones.
    :param on_failure: called with the exception when the engine did not answer in time.
    :param guest_to_host: converts a URL for the guest to one that this process can reach.
    """
    import requests
    from heat.engine import scheduler, service, service_software_config, stack
    from heat.engine.resources import signal_responder
    from heat.rpc import client
    from oslo_messaging import MessagingTimeout

    undo = ExitStack()

    def patch(owner: object, name: str, replacement: object) -> None:
        undo.enter_context(mock.patch.object(owner, name, replacement))

    _wake_listeners(undo)

    # Heat's tasks sleep a second between polls; news wakes them early.
    def sleep(self: object, wait_time: float | None) -> None:  # noqa: ARG001
        if scheduler.ENABLE_SLEEP and wait_time is not None:
            progress.wait(wait_time)

    patch(scheduler.TaskRunner, "_sleep", sleep)

    # ... and end when the engine is stopped, without a traceback from the interpreter.
    run = service.ThreadWithCallback.run

    def run_quietly(self: object) -> None:
        progress.begin()
        with suppress(SystemExit):
            run(self)

    patch(service.ThreadWithCallback, "run", run_quietly)

    # Event sinks are no alternative: they belong to a stack's own environment, which is the user's.
    dispatch = stack.Stack.dispatch_event

    def dispatch_event(self: object, ev: object) -> None:
        on_event(self, ev)
        dispatch(self, ev)

    patch(stack.Stack, "dispatch_event", dispatch_event)

    # Heat answers 500, or reports a failed resource, whatever the reason of the engine's silence.
    ask = client.EngineClient.call

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return ask(self, *args, **kwargs)
        except MessagingTimeout as error:
            on_failure(error)
            raise

    patch(client.EngineClient, "call", call)

    # Heat stores no event when it serves deployments to a server.
    service_class = service_software_config.SoftwareConfigService
    push = service_class._push_metadata_software_deployments

    def push_metadata(self: Any, cnxt: Any, server_id: str, project_id: str | None) -> None:
        if server_id:
            on_deployments(server_id, self.metadata_software_deployments(cnxt, server_id))
        push(self, cnxt, server_id, project_id)

    patch(service_class, "_push_metadata_software_deployments", push_metadata)

    # Two threads that are the first to ask for a URL, one creating the stack and one showing it,
    # each create a key pair; the stored id may then be one's and the secret the other's.
    signed_url = signal_responder.SignalResponder._get_ec2_signed_url
    one_at_a_time = threading.RLock()

    def get_ec2_signed_url(self: Any, *args: Any, **kwargs: Any) -> Any:
        with one_at_a_time:
            return signed_url(self, *args, **kwargs)

    patch(signal_responder.SignalResponder, "_get_ec2_signed_url", get_ec2_signed_url)

    # Heat PUTs metadata to the TempURL, which it made for the guest's side of the network.
    def put(url: str, *args: Any, **kwargs: Any) -> Any:
        return requests.put(guest_to_host(url), *args, **kwargs)  # noqa: S113 - Heat gives one

    # In this module only, which uses two names of requests.
    patch(
        service_software_config,
        "requests",
        SimpleNamespace(put=put, RequestException=requests.RequestException),
    )
    return undo


def _wake_listeners(undo: ExitStack) -> None:
    """Make the listeners for Heat's messages wait for a message instead of polling.

    oslo.messaging's in-memory bus polls every 50 ms in each of three threads: each request of
    Heat's API waits for that, and an unused cloud is never idle.
    """
    from oslo_messaging._drivers import impl_fake

    messages = Waker()

    def notifying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            messages.notify()
            return result

        return call

    for owner, name in (
        (impl_fake.FakeExchange, "deliver_message"),
        (impl_fake.FakeListener, "stop"),
    ):
        undo.enter_context(mock.patch.object(owner, name, notifying(getattr(owner, name))))
    # impl_fake uses no other functions of time.
    clock = SimpleNamespace(time=time.time, sleep=lambda _: messages.wait(MESSAGE_SECONDS))
    undo.enter_context(mock.patch.object(impl_fake, "time", clock))
