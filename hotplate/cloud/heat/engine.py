"""The real Heat engine, in this process: SQLite, an in-memory message bus, threads.

Import order matters: the backend of oslo.service is chosen before any import of Heat, so no module
of Heat may be imported before :func:`load`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.metadata
import itertools
import logging
import logging.handlers
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hotplate.cloud.http import limits
from hotplate.cloud.http.addresses import guest_base
from hotplate.cloud.keystone import heat_backend
from hotplate.errors import HostError, UsageError
from hotplate.text import clean

#: Loggers that write to the file, and not to the user's terminal.
LOGGERS = (
    "heat",
    "oslo",
    "oslo_db",
    "oslo_messaging",
    "oslo_policy",
    "oslo_service",
    "keystonemiddleware",
    "keystoneauth",
    "keystoneclient",
    "swiftclient",
    "stevedore",
    "urllib3",
    "routes",
    "waitress",
    "hotplate.gateway",
    "py.warnings",
)

#: Minimum level of these loggers.  Heat's write several lines for each request, which the event log
#: shows better; neutronclient 14 warns of its deprecation for each client that is created.
QUIET = {
    "heat.api.aws.ec2token": logging.WARNING,
    "heat.common.wsgi": logging.WARNING,
    "neutronclient.v2_0.client": logging.ERROR,
}

#: Size at which Heat's log is rotated; one old file is kept.
LOG_BYTES = 32 << 20

#: Time that a request waits for the engine.  After Heat's default of 60 s, many requests at once on
#: a slow host would be answered with 500 though they are carried out; TripleO has 600 s too.
ANSWER_SECONDS = 600

#: Modules whose importers do without them where they are not installed.
UNUSED = ("eventlet", "mako.ext.pygmentplugin")

_WRITES = "hotplate_writes"

_loaded = False
_frozen = False
_running = threading.Lock()


def load() -> None:
    """Import Heat, once in a process and from any thread.

    :raises HostError: when Heat is not installed.
    :raises UsageError: when something in this process has loaded it, or oslo.service, first.
    """
    global _loaded
    if _loaded:
        return
    if "heat.engine.service" in sys.modules:
        raise UsageError("Heat was imported before the cloud could choose its threading backend")
    with without_garbage_collection():
        _import_heat()
        # Exempt all objects from the collection at the end of the process.
        atexit.register(gc.freeze)
    _loaded = True


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection while a block creates long-lived objects.

    Collections take a quarter of Heat's start.  The objects of the first block (the modules, the
    mappings of the databases, the engine) are exempt from later collections too.  If collection was
    off before, it stays off.
    """
    global _frozen
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Only once: the objects of an earlier cloud would never be freed.
        if not _frozen:
            gc.freeze()
            _frozen = True
        gc.enable()


def _import_heat() -> None:
    try:
        with (
            without_unused_modules(),
            _entry_points_in_one_pass(),
            warnings.catch_warnings(),
        ):
            # Heat's packages emit warnings about one another, also where warnings are errors.
            warnings.simplefilter("ignore")
            import oslo_service.backend as backend

            try:
                backend.init_backend(backend.BackendType.THREADING)
            except backend.exceptions.BackendAlreadySelected as error:
                raise UsageError(
                    "oslo.service was loaded before the cloud, and runs on eventlet, not threads",
                    hint="load oslo.messaging and oslo.service after the cloud, or begin with "
                    "oslo_service.backend.init_backend(BackendType.THREADING)",
                ) from error
            import heat.engine.clients.os.keystone.heat_keystoneclient
            import heat.engine.service  # noqa: F401
            from oslo_config import cfg
            from oslo_log import log as oslo_log

        # Heat's fault filter reads oslo.log's "debug".  Registering it adds a handler for standard
        # error to the root logger, which is up to the caller.
        root = logging.getLogger()
        handlers = list(root.handlers)
        oslo_log.register_options(cfg.CONF)
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
        # Configured by this code only: no files of this host, and not our command line.
        cfg.CONF([], project="heat", default_config_files=[], default_config_dirs=[])
    except ImportError as error:
        raise HostError(
            f"OpenStack Heat cannot be imported: {error}",
            hint="pip install 'openstack-heat>=26,<28'",
        ) from error


@contextlib.contextmanager
def without_unused_modules() -> Iterator[None]:
    """Hide modules from the imports of a block, since nothing here uses them, unless loaded.

    Each is imported where it is installed: eventlet by futurist 3.5 and troveclient 8.11, which
    takes a fifth of the time of Heat's import, and Pygments with its lexers by pecan 1.8 and Mako
    1.4, a twentieth.  eventlet 0.41 takes the importing thread for the main one, which up to Python
    3.12 can then never be joined.
    """
    hidden = [each for each in UNUSED if each not in sys.modules]
    # As Python has it, "not installed".
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for each in hidden:
            del sys.modules[each]


@contextlib.contextmanager
def _entry_points_in_one_pass() -> Iterator[None]:
    """Let stevedore group the entry points of all packages in one pass.

    stevedore 5.8 passes over all for each group, which takes a quarter of a second where it has no
    cache: the first time with each sys.path, such as that of a new folder of tests.
    """
    from stevedore import _cache

    with mock.patch.object(_cache, "_build_cacheable_data", _grouped_entry_points):
        yield


def _grouped_entry_points() -> dict[str, object]:
    """Return the entry points as stevedore's function of :mod:`stevedore._cache` does."""
    found: Any = importlib.metadata.entry_points()
    # Up to Python 3.11 they are in a dict, which warns of its use as one.
    listed = itertools.chain.from_iterable(dict.values(found)) if isinstance(found, dict) else found
    groups: dict[str, dict[tuple[str, str, str], None]] = {}
    for each in listed:
        groups.setdefault(each.group, {})[each.name, each.value, each.group] = None
    return {
        "groups": {group: list(each) for group, each in groups.items()},
        "sys.executable": sys.executable,
        "sys.prefix": sys.prefix,
        "path_values": [],
    }


def claim() -> Callable[[], None]:
    """Claim this process for one cloud; return the function that releases it.

    :raises UsageError: when another cloud has claimed it.
    """
    if not _running.acquire(blocking=False):
        raise UsageError("only one cloud can run in a process")
    return _running.release


@dataclass
class Engine:
    """One running engine service with its database and message bus.

    :param database: the SQLite file; created when it does not exist.
    :param log: the file of Heat's own log.
    :param trustee: the login by which the engine acts for the owners of stacks.
    :param end_tasks: makes the threads of stacks in progress end soon.
    :param on_failure: called with the exception when a database statement fails.
    :param lift_limits: disable Heat's own limits on requests and on a stack's resources.
    :ivar stood_in: types with a stand-in, set by :meth:`start`.
    """

    database: Path
    log: Path
    environment_dir: Path
    keystone_url: str
    trustee: dict[str, str]
    end_tasks: Callable[[], None]
    on_failure: Callable[[Exception], None]
    lift_limits: bool
    stood_in: list[str] = field(default_factory=list, init=False)
    _undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def start(self) -> None:
        """Start the engine; return when it answers."""
        with contextlib.ExitStack() as self._undo:
            self._start_log()
            load()
            self._configure()
            self._open_database()
            self._start_service()
            # All has started: the steps are undone by stop(), and not at the end of this block.
            self._undo = self._undo.pop_all()

    def stop(self) -> None:
        """Stop the engine, wait for its threads, and restore Heat's globals."""
        self._undo.close()

    # -- the parts --------------------

    def _start_log(self) -> None:
        # Log lines that guests cause must not fill the disk.
        handler = logging.handlers.RotatingFileHandler(
            self.log, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", errors="replace"
        )
        self._undo.callback(handler.close)
        handler.setFormatter(
            _Clean("%(asctime)s %(levelname)s %(name)s [%(threadName)s] %(message)s")
        )
        for name in (*LOGGERS, *QUIET):
            logger = logging.getLogger(name)
            self._undo.callback(logger.setLevel, logger.level)
            if name in QUIET:
                logger.setLevel(QUIET[name])
                continue
            self._undo.callback(setattr, logger, "propagate", logger.propagate)
            self._undo.callback(logger.removeHandler, handler)
            logger.addHandler(handler)
            logger.setLevel(logging.INFO if name == "heat" else logging.WARNING)
            logger.propagate = False

    def _configure(self) -> None:
        from keystoneauth1 import loading
        from oslo_config import cfg
        from oslo_policy import opts as policy_opts

        from hotplate.cloud.heat import client_plugins

        conf = cfg.CONF

        # As deployments do: under the new defaults the cfn API refuses its own stack users.
        policy_opts.set_defaults(conf, enforce_new_defaults=False, enforce_scope=False)
        # The option is registered by then.
        self._override("policy_file", str(Path(__file__).with_name("policy.yaml")), "oslo_policy")
        cfn = guest_base("cfn")
        options: dict[str, object] = {
            "keystone_backend": heat_backend.NAME,
            "cloud_backend": client_plugins.NAME,
            "convergence_engine": False,
            "heat_metadata_server_url": cfn,
            "heat_waitcondition_server_url": f"{cfn}/v1/waitcondition",
            # Read later, so that it overrides the stand-ins.
            "environment_dir": str(self.environment_dir / "none"),
            "template_dir": str(self.environment_dir),
            # The defaults are directories of the host, such as /usr/lib/heat.
            "plugin_dirs": [],
            "region_name_for_services": None,
            "stack_user_domain_id": "heat",
            # Tells a server which stack and resource it belongs to.
            "stack_scheduler_hints": True,
            "enable_stack_adopt": True,
            "enable_stack_abandon": True,
            "max_resources_per_stack": -1 if self.lift_limits else limits.RESOURCES,
            # A machine that does not come up is reported at once; whether to try again is up to the
            # user of the harness.
            "action_retry_limit": 0,
            "max_json_body_size": limits.MAX_BODY_LIFTED if self.lift_limits else limits.JSON_BODY,
        }
        for name, value in options.items():
            self._override(name, value)
        # Heat connects over loopback; public URLs are for guests.
        self._override("endpoint_type", "internalURL", "clients")
        self._override("auth_uri", self.keystone_url, "clients_keystone")
        loading.register_auth_conf_options(conf, "trustee")
        self._override("auth_type", "password", "trustee")
        for option in loading.get_auth_plugin_conf_options("password"):
            conf.register_opt(option, group="trustee")
        for name, value in self.trustee.items():
            self._override(name, value, "trustee")

    def _override(self, name: str, value: object, group: str | None = None) -> None:
        from oslo_config import cfg

        self._undo.callback(cfg.CONF.clear_override, name, group)
        cfg.CONF.set_override(name, value, group)

    def _open_database(self) -> None:
        from heat.db import api as db_api
        from heat.db import models
        from oslo_db.sqlalchemy import enginefacade

        # Readers get connections of their own (for oslo.db: a slave without lag), so that only
        # writers need to wait for one another.
        # timeout: seconds that a connection waits for a lock; sqlite3's default is 5.
        url = f"sqlite:///{self.database}?timeout=30"
        manager = enginefacade.transaction_context()
        manager.configure(
            connection=url,
            slave_connection=url,
            synchronous_reader=False,
            # No fsync: as for the other services, a crash of the host ends the run anyway.
            sqlite_synchronous=False,
            # Heat deletes a resource and leaves its data to ON DELETE CASCADE, and SQLite reuses
            # the id of a deleted row: a new resource would have the old one's keys.
            sqlite_fk=True,
        )
        writer, reader = manager.writer.get_engine(), manager.reader.get_engine()
        for engine in (writer, reader):
            self._undo.callback(engine.dispose)
            _tell_of_failures(engine, self.on_failure)
        with writer.connect() as connection:
            # Readers do not wait for the writer.
            connection.connection.execute("PRAGMA journal_mode=WAL")
        _one_writer_at_a_time(writer)
        models.BASE.metadata.create_all(writer)
        self._undo.callback(db_api.context_manager.patch_factory(manager))

    def _start_service(self) -> None:
        from heat.common import messaging
        from heat.engine import environment, resources, service
        from heat.rpc import api as rpc_api

        from hotplate.cloud.heat import stand_ins

        self._undo.callback(messaging.cleanup)
        # The in-memory driver of oslo.messaging.
        messaging.setup("fake://")
        # Drop the cached environment of an earlier cloud in this process.
        resources._environment = None
        with without_unused_modules():
            resources.initialise()
        self.stood_in = stand_ins.register(resources.global_env())
        environment.read_global_environment(
            resources.global_env(), env_dir=str(self.environment_dir)
        )
        running = service.EngineService("hotplate", rpc_api.ENGINE_TOPIC)
        # Before it starts: an engine that fails half-way is stopped, too.
        self._undo.callback(self._stop_service, running)
        running.start()
        # The first client of the bus registers the option.
        self._override("rpc_response_timeout", ANSWER_SECONDS)

    def _stop_service(self, running: Any) -> None:
        from heat.common import exception
        from oslo_config import cfg

        # Stacks in progress are not waited for: their servers are going away.  Their threads end
        # at their next sleep, while the engine can still answer them.
        self.end_tasks()
        # The last calls of these threads must not wait for ANSWER_SECONDS.
        cfg.CONF.set_override("rpc_response_timeout", 5)
        self._undo.callback(cfg.CONF.clear_override, "rpc_response_timeout")
        # Ten seconds for all threads together.
        end = time.monotonic() + 10
        while time.monotonic() < end:
            groups = list(running.thread_group_mgr.groups.values())
            alive = [t for group in groups for t in list(group.threads) if t.is_alive()]
            if not alive:
                break
            alive[0].join(max(0.0, end - time.monotonic()))
        # The last step deletes the engine's row, which a thread writes some time after the start.
        with contextlib.suppress(exception.EntityNotFound):
            running.stop()


class _Clean(logging.Formatter):
    """Formatter that makes lines safe for a terminal, whatever text of a guest Heat logs."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


def _one_writer_at_a_time(engine: Any) -> None:
    """Make a transaction that may write wait for the one before it, as other databases do.

    SQLite lets a transaction begin with a read, and refuses its first write at once ("database is
    locked") when another has written meanwhile, or when a connection being opened holds the write
    lock for a moment; no timeout helps there.  A transaction that begins with that lock waits
    for it, but sleeps and tries again.  So transactions wait for one another before that, for a
    lock of this process.
    """
    import sqlalchemy

    lock = threading.RLock()

    # SQLAlchemy 2.1 offers no hook that runs before oslo.db's, which has begun a transaction
    # without any lock by now.
    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        if not connection.info.get(_WRITES):
            lock.acquire()
            connection.info[_WRITES] = True
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    # SQLAlchemy announces a commit before it is done; it is done when the connection is returned
    # to the pool.
    @sqlalchemy.event.listens_for(engine, "checkin")
    def checkin(_connection: Any, record: Any) -> None:
        if record.info.pop(_WRITES, False):
            lock.release()


def _tell_of_failures(engine: Any, on_failure: Callable[[Exception], None]) -> None:
    """Call ``on_failure`` when a database statement fails: locked, full, unreadable.

    A duplicate row is no failure: Heat expects it.
    """
    import sqlalchemy

    @sqlalchemy.event.listens_for(engine, "handle_error")
    def tell(context: Any) -> None:
        if isinstance(context.original_exception, sqlite3.OperationalError):
            on_failure(context.original_exception)
