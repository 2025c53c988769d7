"""The table of patches: each fits the installed Heat, which still needs it.

No cloud runs here but the one of a test: Heat is as it was installed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recording_cloud import RecordingCompute, Stacks, hot, ref, resource

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.heat import engine
from hotplate.cloud.heat.patches import PATCHES, Hooks, Patch, TaskWaker, apply
from hotplate.events import expected
from hotplate.events.log import EventLog
from hotplate.heat_releases import installed_release

APPLIED = [each for each in PATCHES if each.is_for(installed_release())]

#: Complete as soon as its deployment is served.
UNSIGNALLED = hot(
    config=resource("Heat::SoftwareConfig", group="script", config="true"),
    server=resource("Nova::Server", image="any", flavor="any", user_data_format="SOFTWARE_CONFIG"),
    deployment=resource(
        "Heat::SoftwareDeployment",
        config=ref("config"),
        server=ref("server"),
        signal_transport="NO_SIGNAL",
    ),
)


@pytest.fixture(autouse=True)
def _heat() -> None:
    engine.load()


@pytest.mark.parametrize("patch", APPLIED, ids=lambda each: each.target)
def test_patch_fits_the_installed_heat(patch: Patch) -> None:
    owner, name = patch.owner()
    original = getattr(owner, name)
    if patch.parameters:
        assert " ".join(inspect.signature(original).parameters) == patch.parameters
    else:
        assert inspect.ismodule(original)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda each: each.target)
def test_patch_names_a_test(patch: Patch) -> None:
    assert callable(globals()[patch.still_needed])


def test_patch_ends_with_the_release_that_needs_it_no_longer() -> None:
    patch = Patch("heat.engine.stack:Stack", lambda *_: None, "", "", since=27, until=29)
    assert [each for each in (26, 27, 28, 29) if patch.is_for(each)] == [27, 28]


HOOKS = Hooks(
    progress=TaskWaker(),
    on_event=lambda *_: None,
    on_deployments=lambda *_: None,
    on_failure=lambda _: None,
    guest_to_host=str,
)


def test_patches_are_undone() -> None:
    owners = [patch.owner() for patch in APPLIED]
    before = [getattr(owner, name) for owner, name in owners]
    with apply(HOOKS):
        during = [getattr(owner, name) for owner, name in owners]
        assert not [each for each, was in zip(during, before, strict=True) if each is was]
    assert [getattr(owner, name) for owner, name in owners] == before


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("heat.engine.service_software_config", {"requests.put", "requests.RequestException"}),
        ("oslo_messaging._drivers.impl_fake", {"time.time", "time.sleep"}),
        (
            "oslo_db.sqlalchemy.engines",
            {
                f"pool.{each}"
                for each in ("NullPool", "QueuePool", "SingletonThreadPool", "StaticPool")
            },
        ),
    ],
)
def test_replaced_module_is_used_by_these_names(module: str, names: set[str]) -> None:
    """The replacement of a module has no other names."""
    replaced = next(iter(names)).partition(".")[0]
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    attributes = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute)]
    used = {ast.unparse(each) for each in attributes}
    assert {each for each in used if each.startswith(f"{replaced}.")} == names


# -- the patches are still needed -----------------------------------------------------------------


def test_task_sleeps_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    from heat.engine import scheduler

    naps: list[float] = []
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(sleep=naps.append))
    scheduler.TaskRunner(lambda: None)._sleep(1)
    assert naps == [1]


def test_thread_of_a_task_passes_on_its_exit() -> None:
    from heat.engine import service

    def end() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        service.ThreadWithCallback(end).run()


def test_global_environment_gives_stacks_no_event_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    from heat.engine import environment, resources

    everywhere = environment.Environment({}, user_env=False)
    everywhere.register_event_sink("queue", SimpleNamespace)
    monkeypatch.setattr(resources, "_environment", everywhere)
    sinks = {"event_sinks": [{"type": "queue", "target": "events"}]}
    everywhere.load(sinks)
    assert environment.Environment(sinks).get_event_sinks()
    assert not environment.Environment().get_event_sinks()


def test_silence_of_the_engine_is_answered_like_any_fault() -> None:
    from heat.api.middleware.fault import FaultWrapper
    from oslo_messaging import MessagingTimeout

    answer = FaultWrapper(None)._error
    codes = {answer(each)["code"] for each in (MessagingTimeout(), OSError())}
    assert codes == {500}


def test_served_deployments_are_no_event(tmp_path: Path) -> None:
    events = EventLog()
    with Cloud(directory=tmp_path, compute=RecordingCompute(), events=events) as cloud:
        stacks = Stacks(cloud)
        stack = stacks.complete(UNSIGNALLED)
        assert [each for each in events if expected.deployments(each)]
        stored = cloud.heat().events.list(stack, resource_name="server")
        states = {each.resource_status for each in stored}
        assert states == {"CREATE_IN_PROGRESS", "CREATE_COMPLETE"}


def test_two_threads_each_create_a_key_pair() -> None:
    from heat.engine.resources.signal_responder import SignalResponder

    both = threading.Barrier(2, timeout=120)

    class Responder(SignalResponder):  # type: ignore[misc]
        id = 1

        def data(self) -> dict[str, str]:
            return {}

        def _get_user_id(self) -> str:
            return "user"

        def _create_keypair(self) -> None:
            # Reached by both, or never passed.
            both.wait()
            passed.append(threading.get_ident())

    passed: list[int] = []
    responder = object.__new__(Responder)
    threads = [threading.Thread(target=responder._get_ec2_signed_url) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 2


def test_metadata_is_put_to_the_url_of_the_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    from heat.engine import service_software_config as configs

    url = "http://192.0.2.1/v1/AUTH_x/c/o?temp_url_sig=s"
    data = SimpleNamespace(key="metadata_put_url", value=url)
    server = SimpleNamespace(id=1, action="CREATE", rsrc_metadata={}, data=[data], atomic_key=1)
    database = SimpleNamespace(
        resource_get_by_physical_resource_id=lambda *_: server,
        resource_update=lambda *_: 1,
    )
    put: list[str] = []

    def answer(address: str, *_: Any, **__: Any) -> Any:
        put.append(address)
        return SimpleNamespace(raise_for_status=lambda: None)

    monkeypatch.setattr(configs, "db_api", database)
    monkeypatch.setattr(configs.requests, "put", answer)
    service = configs.SoftwareConfigService()
    monkeypatch.setattr(service, "metadata_software_deployments", lambda *_: [])
    service._push_metadata_software_deployments(None, "server", None)
    assert put == [url]


def test_bus_in_memory_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    from oslo_messaging import Target
    from oslo_messaging._drivers import impl_fake

    exchanges = impl_fake.FakeExchangeManager("heat")
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        exchanges.get_exchange("heat").deliver_message("engine", {}, {"method": "ping"})

    monkeypatch.setattr(impl_fake, "time", SimpleNamespace(time=time.time, sleep=sleep))
    listener = impl_fake.FakeListener(exchanges, [Target(topic="engine", exchange="heat")])
    assert listener.poll()
    assert len(naps) == 1


def pool_of_a_file(folder: Path) -> object:
    from oslo_db.sqlalchemy import enginefacade

    manager = enginefacade.transaction_context()
    manager.configure(connection=f"sqlite:///{folder / 'heat.db'}")
    return manager.writer.get_engine().pool


def test_each_transaction_on_a_file_has_a_connection_of_its_own(tmp_path: Path) -> None:
    from sqlalchemy.pool import NullPool, QueuePool

    assert isinstance(pool_of_a_file(tmp_path), NullPool)
    with apply(HOOKS):
        assert isinstance(pool_of_a_file(tmp_path), QueuePool)


def test_end_of_a_thread_pool_wakes_no_idle_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import futurist

    pool = futurist.ThreadPoolExecutor(max_workers=1)
    added: list[object] = []
    monkeypatch.setattr(pool._work_queue, "put", added.append)
    pool.submit(int)
    pool.shutdown(wait=False)
    assert len(added) == 1


def clients_of_heat(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a new manager of the plug-ins that are Heat's clients."""
    from heat.engine import clients

    monkeypatch.setattr(clients, "_mgr", None)
    clients.initialise()
    return clients._mgr


def test_heat_imports_all_clients_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(inspect.isclass(each.plugin) for each in clients_of_heat(monkeypatch))


def test_client_is_imported_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from heat.common.context import RequestContext

    context = RequestContext()
    names = set(clients_of_heat(monkeypatch).names())
    with apply(HOOKS):
        made = clients_of_heat(monkeypatch)
    assert set(made.names()) == names
    assert not any(inspect.isclass(each.plugin) for each in made)
    for name, plugin in (("ironic", "IronicClientPlugin"), ("openstack", "OpenStackSDKPlugin")):
        assert type(made[name].plugin(context)).__name__ == plugin
