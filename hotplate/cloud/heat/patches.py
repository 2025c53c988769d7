"""Everything in Heat that is changed from outside, and nothing else.

What is here has no option and no plug-in point in Heat.  Each entry names the attribute, why, and
what it must look like to fit; :func:`misfits` says what a new Heat has changed, and a test asks it.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

#: The versions of openstack-heat these patches are known to fit.
FITS = (27, 28)


class Waker:
    """Wakes threads when there is news, each of what it has not seen."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        # How far each thread has seen: what happens while it looks must not be lost.
        self._own = threading.local()

    def notify(self) -> None:
        """Something happened."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def begin(self) -> None:
        """In a thread that begins: it has seen what has happened so far."""
        self._own.seen = self._count

    def wait(self, seconds: float) -> None:
        """Wait until something happens that this thread has not seen, at most ``seconds``.

        The first wait of a thread that did not :meth:`begin` is none: it may have looked before.
        """
        with self._changed:
            seen = getattr(self._own, "seen", -1)
            self._changed.wait_for(lambda: self._count != seen, seconds)
            self._own.seen = self._count


class TaskWaker(Waker):
    """Wakes the engine's tasks when something happened that they may be waiting for.

    Heat's tasks look once a second; a signal that has come in need not wait for that, and neither
    need what depends on a resource that is done.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stopped = False

    def stop(self) -> None:
        """End every task that sleeps or goes to sleep; for good."""
        self._stopped = True
        self.notify()

    def wait(self, seconds: float) -> None:
        """Wait as any thread does.

        :raises SystemExit: when the engine is being stopped; ends the thread and nothing else.
        """
        super().wait(seconds)
        if self._stopped:
            # Heat makes the reason of a stack and of its resource of this.
            raise SystemExit("the engine went down")


MESSAGE_SECONDS = 1.0
"""The longest wait for a message of Heat's, should one come that :func:`apply` does not hear of."""


def misfits() -> list[str]:
    """Return what in the installed Heat is not as the patches need it; empty when all is well."""
    from importlib.metadata import version

    from heat.engine import scheduler, service, service_software_config, stack
    from heat.engine.resources import signal_responder
    from heat.rpc import client
    from oslo_messaging._drivers import impl_fake

    problems = []
    major = int(version("openstack-heat").split(".")[0])
    if not FITS[0] <= major < FITS[1]:
        problems.append(f"openstack-heat is {major}, these patches were tried with {FITS[0]}")
    expected: dict[str, tuple[Any, list[str]]] = {
        "TaskRunner._sleep": (scheduler.TaskRunner._sleep, ["self", "wait_time"]),
        "ThreadWithCallback.run": (service.ThreadWithCallback.run, ["self"]),
        "EngineClient.call": (
            client.EngineClient.call,
            ["self", "ctxt", "msg", "version", "timeout"],
        ),
        "Stack.dispatch_event": (stack.Stack.dispatch_event, ["self", "ev"]),
        "SoftwareConfigService._push_metadata_software_deployments": (
            service_software_config.SoftwareConfigService._push_metadata_software_deployments,
            ["self", "cnxt", "server_id", "stack_user_project_id"],
        ),
        "SoftwareConfigService.metadata_software_deployments": (
            service_software_config.SoftwareConfigService.metadata_software_deployments,
            ["self", "cnxt", "server_id"],
        ),
        "SignalResponder._get_ec2_signed_url": (
            signal_responder.SignalResponder._get_ec2_signed_url,
            ["self", "signal_type", "never_expire"],
        ),
        "FakeListener.stop": (impl_fake.FakeListener.stop, ["self"]),
    }
    for name, (function, parameters) in expected.items():
        if list(inspect.signature(function).parameters) != parameters:
            problems.append(f"{name} no longer takes {parameters}")
    source = inspect.getsource(scheduler.TaskRunner._sleep)
    if "time.sleep(wait_time)" not in source:
        problems.append("TaskRunner._sleep no longer sleeps by time.sleep(wait_time)")
    source = inspect.getsource(impl_fake)
    if source.count("time.sleep(") != 1 or not hasattr(impl_fake.FakeExchange, "deliver_message"):
        problems.append("the bus in memory no longer sleeps, or delivers, in one place")
    source = inspect.getsource(service_software_config.SoftwareConfigService)
    if source.count("requests.put(") != 1 or source.count("requests.") != 2:
        problems.append("SoftwareConfigService uses requests for more than one PUT")
    return problems


def apply(
    *,
    progress: TaskWaker,
    on_event: Callable[[object, object], None],
    on_deployments: Callable[[str, list[dict[str, object]]], None],
    on_failure: Callable[[Exception], None],
    guest_to_host: Callable[[str], str],
) -> ExitStack:
    """Change Heat; closing the result changes it back.

    :param on_event: called with (stack, event) after an event is stored.
    :param on_deployments: called with (server, configs) before a server is served other deployments
        than before.
    :param on_failure: called with the exception when the engine did not answer in time.
    :param guest_to_host: turns a URL for the guest into one that this process can reach.
    """
    import requests
    from heat.engine import scheduler, service, service_software_config, stack
    from heat.engine.resources import signal_responder
    from heat.rpc import client
    from oslo_messaging import MessagingTimeout

    undo = ExitStack()
    _wake_listeners(undo)

    # Heat's tasks sleep a second between two looks; they wake early when there is news.
    def sleep(self: object, wait_time: float | None) -> None:  # noqa: ARG001
        if scheduler.ENABLE_SLEEP and wait_time is not None:
            progress.wait(wait_time)

    undo.enter_context(mock.patch.object(scheduler.TaskRunner, "_sleep", sleep))

    # ... and end when the engine is stopped, without a word from the interpreter.
    run = service.ThreadWithCallback.run

    def run_quietly(self: object) -> None:
        progress.begin()
        with suppress(SystemExit):
            run(self)

    undo.enter_context(mock.patch.object(service.ThreadWithCallback, "run", run_quietly))

    # Event sinks are part of a stack's own environment, which is the user's.
    dispatch = stack.Stack.dispatch_event

    def dispatch_event(self: object, ev: object) -> None:
        on_event(self, ev)
        dispatch(self, ev)

    undo.enter_context(mock.patch.object(stack.Stack, "dispatch_event", dispatch_event))

    # Heat answers 500, or calls a resource failed, for whatever reason the engine is silent.
    ask = client.EngineClient.call

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return ask(self, *args, **kwargs)
        except MessagingTimeout as error:
            on_failure(error)
            raise

    undo.enter_context(mock.patch.object(client.EngineClient, "call", call))

    # What a server is served has no event of its own.
    service_class = service_software_config.SoftwareConfigService
    push = service_class._push_metadata_software_deployments

    def push_metadata(self: Any, cnxt: Any, server_id: str, project_id: str | None) -> None:
        if server_id:
            on_deployments(server_id, self.metadata_software_deployments(cnxt, server_id))
        push(self, cnxt, server_id, project_id)

    undo.enter_context(
        mock.patch.object(service_class, "_push_metadata_software_deployments", push_metadata)
    )

    # Two threads that ask for the same URL first, one that makes the stack and one that shows it,
    # each make a key pair; what is stored then may be the id of one and the secret of the other.
    signed_url = signal_responder.SignalResponder._get_ec2_signed_url
    one_at_a_time = threading.RLock()

    def get_ec2_signed_url(self: Any, *args: Any, **kwargs: Any) -> Any:
        with one_at_a_time:
            return signed_url(self, *args, **kwargs)

    undo.enter_context(
        mock.patch.object(
            signal_responder.SignalResponder, "_get_ec2_signed_url", get_ec2_signed_url
        )
    )

    # Heat PUTs metadata to the TempURL that it made for the guest's side of the network.
    def put(url: str, *args: Any, **kwargs: Any) -> Any:
        return requests.put(guest_to_host(url), *args, **kwargs)  # noqa: S113 - Heat gives one

    undo.enter_context(
        mock.patch.object(
            service_software_config,
            "requests",
            SimpleNamespace(put=put, RequestException=requests.RequestException),
        )
    )
    return undo


def _wake_listeners(undo: ExitStack) -> None:
    """Let who listens for Heat's messages wait for one.

    oslo.messaging's bus in memory looks for messages every 50 ms in each of three threads: each
    request of Heat's API waits for that, and a cloud in which nothing happens is never idle.
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
    clock = SimpleNamespace(time=time.time, sleep=lambda _: messages.wait(MESSAGE_SECONDS))
    undo.enter_context(mock.patch.object(impl_fake, "time", clock))
