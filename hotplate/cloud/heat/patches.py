"""All patches to Heat, and nothing else: one table, :data:`PATCHES`.

They change behaviour for which Heat has no option and no plug-in point.  Each row names the
releases that it is for, its reason, and a test of the unpatched Heat that fails when a release no
longer needs it.
"""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hotplate.heat_releases import OLDEST, installed_release


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


#: Maximum wait for a message of Heat's, in case one comes unnoticed.
MESSAGE_SECONDS = 1.0


@dataclass(frozen=True)
class Hooks:
    """The callbacks of the patches.

    :param progress: wakes and ends the engine's tasks.
    :param on_event: called with (stack, event) after an event is stored.
    :param on_deployments: called with (server, configs) before a server is served deployments that
        differ from the last ones.
    :param on_failure: called with the exception when the engine did not answer in time.
    :param guest_to_host: converts a URL for the guest to one that this process can reach.
    :ivar messages: wakes the listeners for Heat's messages.
    """

    progress: TaskWaker
    on_event: Callable[[object, object], None]
    on_deployments: Callable[[str, list[dict[str, object]]], None]
    on_failure: Callable[[Exception], None]
    guest_to_host: Callable[[str], str]
    messages: Waker = field(default_factory=Waker, init=False)


@dataclass(frozen=True)
class Patch:
    """One row of the table.

    :param target: ``module:attribute``.
    :param make: returns the replacement, given the original and the hooks.
    :param reason: why Heat's own behaviour is not enough.
    :param still_needed: the test in ``tests/cloud/test_patches.py`` that fails when it is.
    :param parameters: of the original, if it is a function: the form that the replacement fits.
    :param since: the first release that it is for.
    :param until: the first release that no longer needs it, None while there is none.
    """

    target: str
    make: Callable[[Any, Hooks], Any]
    reason: str
    still_needed: str
    parameters: str = ""
    since: int = OLDEST
    until: int | None = None

    def is_for(self, release: int) -> bool:
        """Return True when a release of Heat needs it."""
        return self.since <= release and (self.until is None or release < self.until)

    def owner(self) -> tuple[Any, str]:
        """Return the module or class that has the attribute, and the attribute's name."""
        module, _, path = self.target.partition(":")
        *classes, name = path.split(".")
        return functools.reduce(getattr, classes, importlib.import_module(module)), name


def apply(hooks: Hooks) -> ExitStack:
    """Patch the installed Heat; closing the result restores it."""
    undo = ExitStack()
    for patch in PATCHES:
        if patch.is_for(installed_release()):
            owner, name = patch.owner()
            replacement = patch.make(getattr(owner, name), hooks)
            undo.enter_context(mock.patch.object(owner, name, replacement))
    return undo


def _sleep(_: Any, hooks: Hooks) -> Any:
    from heat.engine import scheduler

    def sleep(self: object, wait_time: float | None) -> None:  # noqa: ARG001
        if scheduler.ENABLE_SLEEP and wait_time is not None:
            hooks.progress.wait(wait_time)

    return sleep


def _run(run: Any, hooks: Hooks) -> Any:
    def run_quietly(self: object) -> None:
        hooks.progress.begin()
        with suppress(SystemExit):
            run(self)

    return run_quietly


def _dispatch_event(dispatch: Any, hooks: Hooks) -> Any:
    def dispatch_event(self: object, ev: object) -> None:
        hooks.on_event(self, ev)
        dispatch(self, ev)

    return dispatch_event


def _call(ask: Any, hooks: Hooks) -> Any:
    from oslo_messaging import MessagingTimeout

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return ask(self, *args, **kwargs)
        except MessagingTimeout as error:
            hooks.on_failure(error)
            raise

    return call


def _push_metadata(push: Any, hooks: Hooks) -> Any:
    def push_metadata(self: Any, cnxt: Any, server_id: str, project_id: str | None) -> None:
        if server_id:
            configs = self.metadata_software_deployments(cnxt, server_id)
            hooks.on_deployments(server_id, configs)
        push(self, cnxt, server_id, project_id)

    return push_metadata


def _get_ec2_signed_url(signed_url: Any, _: Hooks) -> Any:
    one_at_a_time = threading.RLock()

    def get_ec2_signed_url(self: Any, *args: Any, **kwargs: Any) -> Any:
        with one_at_a_time:
            return signed_url(self, *args, **kwargs)

    return get_ec2_signed_url


def _requests(requests: Any, hooks: Hooks) -> Any:
    def put(url: str, *args: Any, **kwargs: Any) -> Any:
        return requests.put(hooks.guest_to_host(url), *args, **kwargs)

    # The module uses no other names of requests.
    return SimpleNamespace(put=put, RequestException=requests.RequestException)


def _notifying(function: Any, hooks: Hooks) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        hooks.messages.notify()
        return result

    return call


def _clock(_: Any, hooks: Hooks) -> Any:
    # The module uses no other functions of time.
    return SimpleNamespace(time=time.time, sleep=lambda _: hooks.messages.wait(MESSAGE_SECONDS))


def _load_one_plugin(load: Any, _: Hooks) -> Any:
    from stevedore.extension import Extension

    def load_one_plugin(self: Any, ep: Any, *args: Any) -> Any:
        heats = ep.module.startswith("heat.engine.clients.os.")
        # Heat only calls its clients and constraints, of which none has an is_available().
        if not heats or self.namespace not in ("heat.clients", "heat.constraints"):
            return load(self, ep, *args)
        plugin: Any = lambda *given: ep.load()(*given)  # noqa: E731
        return Extension(ep.name, ep, plugin, None)

    return load_one_plugin


def _pool(pool: Any, _: Hooks) -> Any:
    class KeptConnections(pool.QueuePool):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, creator: Any, **options: Any) -> None:
            size = {"pool_size": 32, "max_overflow": 64, "use_lifo": True}
            super().__init__(creator, **{**options, **size})

    # The module uses no other names of sqlalchemy.pool.
    names = ("QueuePool", "SingletonThreadPool", "StaticPool")
    return SimpleNamespace(
        NullPool=KeptConnections, **{name: getattr(pool, name) for name in names}
    )


def _thread_pool_executor(_: Any, __: Hooks) -> Any:
    def make(max_workers: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers)

    return make


_BUS = (
    "the bus in memory polls every 50 ms in each of three threads: each request of Heat's API "
    "waits for that, and an unused cloud is never idle"
)

PATCHES = (
    Patch(
        "heat.engine.scheduler:TaskRunner._sleep",
        _sleep,
        "tasks sleep a second between polls, although a signal or a completed resource could wake "
        "them, and cannot be ended meanwhile",
        "test_task_sleeps_whatever_happens",
        parameters="self wait_time",
    ),
    Patch(
        "heat.engine.service:ThreadWithCallback.run",
        _run,
        "a task that begins has to know the news so far, and ends with the engine without a "
        "traceback, also where threads' exceptions are reported",
        "test_thread_of_a_task_passes_on_its_exit",
        parameters="self",
    ),
    Patch(
        "heat.engine.stack:Stack.dispatch_event",
        _dispatch_event,
        "event sinks belong to a stack's own environment, which is the user's",
        "test_global_environment_gives_stacks_no_event_sink",
        parameters="self ev",
    ),
    Patch(
        "heat.rpc.client:EngineClient.call",
        _call,
        "the API answers 500, or a resource fails, whatever the reason of the engine's silence",
        "test_silence_of_the_engine_is_answered_like_any_fault",
        parameters="self ctxt msg version timeout",
    ),
    Patch(
        "heat.engine.service_software_config:"
        "SoftwareConfigService._push_metadata_software_deployments",
        _push_metadata,
        "no event is stored when deployments are served to a server",
        "test_served_deployments_are_no_event",
        parameters="self cnxt server_id stack_user_project_id",
    ),
    Patch(
        "heat.engine.resources.signal_responder:SignalResponder._get_ec2_signed_url",
        _get_ec2_signed_url,
        "two threads that are the first to ask for a URL, one creating the stack and one showing "
        "it, each create a key pair; the stored id may then be one's and the secret the other's",
        "test_two_threads_each_create_a_key_pair",
        parameters="self signal_type never_expire",
    ),
    Patch(
        "heat.engine.service_software_config:requests",
        _requests,
        "metadata is PUT to the TempURL that was made for the guest's side of the network",
        "test_metadata_is_put_to_the_url_of_the_guest",
    ),
    Patch(
        "oslo_messaging._drivers.impl_fake:FakeExchange.deliver_message",
        _notifying,
        _BUS,
        "test_bus_in_memory_polls",
        parameters="self topic ctxt message server fanout reply_q",
    ),
    Patch(
        "oslo_messaging._drivers.impl_fake:FakeListener.stop",
        _notifying,
        _BUS,
        "test_bus_in_memory_polls",
        parameters="self",
    ),
    Patch(
        "oslo_messaging._drivers.impl_fake:time",
        _clock,
        _BUS,
        "test_bus_in_memory_polls",
    ),
    Patch(
        "stevedore.extension:ExtensionManager._load_one_plugin",
        _load_one_plugin,
        "Heat imports the client of each service at its start, and with some the OpenStack SDK, "
        "although few templates use them: a tenth of the start",
        "test_heat_imports_all_clients_at_its_start",
        parameters="self ep invoke_on_load invoke_args invoke_kwds",
    ),
    Patch(
        "oslo_db.sqlalchemy.engines:pool",
        _pool,
        "each transaction on a SQLite file opens a connection, which reads the schema again",
        "test_each_transaction_on_a_file_has_a_connection_of_its_own",
    ),
    Patch(
        "futurist:ThreadPoolExecutor",
        _thread_pool_executor,
        "its idle threads notice up to a second late that they should end; the engine's stop waits "
        "for those that answered messages",
        "test_end_of_a_thread_pool_wakes_no_idle_thread",
        parameters="max_workers check_and_reject",
    ),
)
