r"""The pytest plug-in: tests of images in any repository.

::

    # test_motd.py;  run by:  pytest --image web.qcow2
    def test_script_writes_motd(server):
        done = server.deploy(group="script", config="#!/bin/sh\necho hello > /etc/motd\n").wait()
        assert done.status == "COMPLETE", done
        assert server.host.file("/etc/motd").contains("hello")

The first test of an image boots it and saves its state; every test after that starts from a
restored copy.  Several ``--image`` options run each test on each image.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hotplate.errors import HotplateError, MachineLostError, Outcome, UsageError
from hotplate.plugin import options, outcomes
from hotplate.plugin.options import pytest_addoption
from hotplate.plugin.outcomes import one_sentence
from hotplate.plugin.results import AGAIN, IMAGE, Results, image_of, note
from hotplate.settings import Settings
from hotplate.text import clean
from hotplate.timing.deadline import DeadlineExceeded

if TYPE_CHECKING:
    from hotplate.cloud.cloud import Cloud
    from hotplate.image.inspect import Image
    from hotplate.machine.machine import Capability
    from hotplate.plugin.cloud_pool import CloudPool
    from hotplate.plugin.hook_runs import HookRuns
    from hotplate.plugin.pool import ServerPool
    from hotplate.plugin.server import ServerUnderTest
    from hotplate.plugin.stack import StackUnderTest
    from hotplate.report.artifacts import Artifacts
    from hotplate.testbed.testbed import Testbed
    from hotplate.verdict.diagnosis import Diagnosis

__all__ = ("pytest_addoption",)

#: The problem of a failed test, or of one in a module; "" while none has failed.
_PROBLEM = pytest.StashKey[str]()

_LOST = pytest.StashKey[bool]()
_NEXT: pytest.StashKey[pytest.Item | None] = pytest.StashKey()
#: The stacks that a test made.
_STACKS: pytest.StashKey[list[StackUnderTest]] = pytest.StashKey()
_FOLDER = pytest.StashKey[Path]()
_ARTIFACTS: pytest.StashKey[Artifacts] = pytest.StashKey()

#: The plug-in's own marker of a test skipped because no image was given.
NEEDS_IMAGE = "hotplate_needs_image"

NO_AGENT = (
    "has no agent: each test boots its server, which is ready when its boot has ended; nothing is "
    "saved, and nothing can be deployed to it"
)

REQUIRED = "an image is required, but none was given (--image=IMAGE)"

MARKERS = (
    f"{NEEDS_IMAGE}: set by hotplate on a test that is skipped because no image was given",
    "hotplate_cold: boot the server of this test, restore nothing",
    "hotplate_groups(*names): skip this test on an image that has no hook for one of the groups",
    "hotplate_needs(*abilities): skip this test on a machine that lacks one of the abilities: "
    "power, links, states, screen, monitor, kernel, disk",
)

#: The key by which xdist's controller passes the run's folder to its workers.
FOLDER = "hotplate_folder"


# tryfirst makes it an outer wrapper: the other plug-ins have run when the yield returns.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Add the short names of the options after other plug-ins have added theirs."""
    with options.short_names(early_config, parser, args, os.environ):
        return (yield)


# Before pytest's own implementation, which begins the session.
@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | pytest.ExitCode | None:
    """Run pytest again when it took the value of an option for a test path."""
    return options.run_again(config, os.environ)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options before anything runs."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if options.value(config, "os-cloud"):
        # Tests cannot act on openstacksdk's pending deprecations.
        config.addinivalue_line("filterwarnings", "ignore::PendingDeprecationWarning:openstack")
    _offer_session_to_testinfra(config)
    options.shard(config)
    if not options.value(config, "image"):
        return
    # This is a worker of xdist; the controller collects the results of all.
    if hasattr(config, "workerinput"):
        _end_with_parent()
        return
    images = _image_names(options.value(config, "image"))
    config.pluginmanager.register(Results(lambda: _folder(config), images), "hotplate-results")


def _offer_session_to_testinfra(config: pytest.Config) -> None:
    """Add the hosts ``hotplate://NAME`` to those of testinfra's plug-in, unless that is disabled.

    testinfra has no public way to add a backend; it looks its classes up in this table by name.
    """
    if config.pluginmanager.hasplugin("pytest11.testinfra"):
        from testinfra.backend import BACKENDS

        BACKENDS.setdefault("hotplate", "hotplate.session.testinfra_backend.SessionBackend")


def _end_with_parent() -> None:
    """End this xdist worker, and so its machines, when the controller is killed.

    By itself it would first finish its present test; see prctl(2), PR_SET_PDEATHSIG.
    """
    import ctypes
    import signal

    pr_set_pdeathsig = 1
    # In libc; Python has no function for it.
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the run's folder to a worker of xdist, which makes its own folder in it."""
    if options.value(node.config, "image"):
        with contextlib.suppress(HotplateError):
            # A worker without it makes its own, or reports that it cannot.
            node.workerinput[FOLDER] = str(_folder(node.config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other shards."""
    if not (chosen := options.shard(config)):
        return
    start = config.invocation_params.dir
    mine: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        name = _group(item) or _name(item, start)
        (mine if chosen.has(name) else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = mine


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail when a selected test needs an image and one is required."""
    needy = [item for item in session.items if item.get_closest_marker(NEEDS_IMAGE)]
    # xdist would replace a worker that exits; there the fixture fails each test.
    worker = hasattr(session.config, "workerinput")
    if needy and not worker and options.requires_image(session.config):
        pytest.exit(
            f"{REQUIRED}; the first test that needs it: {needy[0].name}",
            returncode=Outcome.USAGE.exit_status,
        )


def _group(item: pytest.Item) -> str:
    """Return the name in pytest-xdist's mark ``xdist_group``, "" without one.

    The tests of a group share something expensive to make.
    """
    if (mark := item.get_closest_marker("xdist_group")) is None:
        return ""
    return str(mark.kwargs.get("name") or next(iter(mark.args), "default"))


def _name(item: pytest.Item, start: Path) -> str:
    """Return a test's name relative to the directory in which pytest was started.

    pytest's own name is relative to its root directory, which depends on the command line's paths.
    """
    return f"{os.path.relpath(item.path, start)}::{item.nodeid.partition('::')[2]}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses an image once for every ``--image``."""
    if "image" not in metafunc.fixturenames or not _is_our_image(metafunc):
        return
    names = _image_names(options.value(metafunc.config, "image"))
    images: list[object] = [pytest.param(path, id=name) for name, path in names.items()]
    if not images:
        marks = [getattr(pytest.mark, NEEDS_IMAGE)]
        if not options.requires_image(metafunc.config):
            marks.append(pytest.mark.skip(reason="it tests an image, but no --image was given"))
        images = [pytest.param(None, id="no-image", marks=marks)]
    # With the scope of the session pytest groups the tests by image: each is opened once.
    metafunc.parametrize("image", images, indirect=True, scope="session")


def _image_names(paths: list[str]) -> dict[str, Path]:
    """Name each image after its file, and its folder too when two files have the same name."""
    images = [Path(each) for each in dict.fromkeys(paths)]
    stems = [each.stem for each in images]
    named: dict[str, Path] = {}
    for image in images:
        name = image.stem if stems.count(image.stem) == 1 else f"{image.parent.name}-{image.stem}"
        while name in named:
            name += "'"
        named[name] = image
    return named


def _is_our_image(metafunc: pytest.Metafunc) -> bool:
    """Return True when the fixture ``image`` is this plug-in's, not the tests' own."""
    definitions = metafunc._arg2fixturedefs.get(IMAGE, ())
    # Of several definitions the last one overrides the others.
    return bool(definitions) and definitions[-1].func.__module__ == __name__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record a failure for the end of the fixtures, whatever their scope."""
    # Before the report is made, which copies the properties.
    note(item, _server_of(item))
    report = yield
    if report.failed:
        problem = call.excinfo.exconly() if call.excinfo is not None else "it failed"
        # The server's fixture may be that of a test or of a module, so that each level gets the
        # problem.
        for node in item.listchain():
            node.stash[_PROBLEM] = problem
        server = _server_of(item)
        if server is not None:
            from hotplate.plugin.server import written_by_failed

            if call.excinfo is not None and isinstance(call.excinfo.value, MachineLostError):
                server.await_loss()
            # Before other captured text, which is usually Heat's log.
            report.sections[:0] = written_by_failed(server.deployments)
        for made in item.stash.get(_STACKS, ()):
            # The client may raise anything here, and the test has failed already.
            with contextlib.suppress(Exception):
                report.sections[:0] = made.written_by_failed()
        if call.excinfo is not None and IMAGE in getattr(item, "fixturenames", ()):
            lost = server is not None and server.lost
            # pytest's own JUnit file contains a test's properties, too.
            faulty = server is not None and server.faulty
            outcome = outcomes.of_failure(call.excinfo.value, lost=lost, faulty=faulty)
            item.user_properties.append((outcomes.PROPERTY, str(outcome)))
            report.user_properties[:] = item.user_properties
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test when the chosen machine lacks an ability, or the image a hook, that it needs.

    A missing hook shows in the image's manifest; without a manifest the guest is asked, which has
    to be booted first.
    """
    from hotplate import paths
    from hotplate.image import manifest, plan

    if (image := image_of(item)) is None:
        return
    with one_sentence():
        if needed := _needed(item):
            from hotplate.plugin.server import skip_without

            capabilities, kind = _chosen_machine(item.config)
            skip_without(needed, capabilities, what="the test", kind=kind)
    if wanted := _groups(item):
        # Without a usable manifest the guest is asked, see _use().
        with contextlib.suppress(HotplateError):
            ours, others = paths.elements_dir(), (plan.dib_elements_dir(),)
            checksums = _settings(item.config).cache / "checksums"
            if missing := manifest.groups_without_hook(
                image, wanted, ours=ours, others=others, checksums=checksums
            ):
                name = manifest.path_for(image).name
                pytest.skip(f"the image has no hook for {', '.join(missing)}, by {name}")


def _needed(item: pytest.Item) -> list[Capability]:
    """Return the abilities for which a test needs its server's machine.

    :raises UsageError: when one has no such name.
    """
    from hotplate.machine.machine import Capability

    names = [name for mark in item.iter_markers("hotplate_needs") for name in mark.args]
    known = {each.name.lower(): each for each in Capability}
    for name in names:
        if name not in known:
            raise UsageError(
                f'{item.name} needs "{name}", and the marker hotplate_needs takes: '
                f"{', '.join(known)}"
            )
    return [known[name] for name in names]


def _chosen_machine(config: pytest.Config) -> tuple[frozenset[Capability], str]:
    """Return the abilities of the servers' machines, and words for "this server is ..."."""
    if cloud := options.value(config, "os-cloud"):
        from hotplate.elsewhere.server import CloudServer, kind_in

        return CloudServer.capabilities, kind_in(cloud)
    from hotplate.container.machine import ContainerMachine
    from hotplate.machine.qemu import QemuMachine

    kind = _settings(config).machine.value
    kinds = {each.kind: each.capabilities for each in (QemuMachine, ContainerMachine)}
    return kinds[kind], f"a {kind}"


def _groups(item: pytest.Item) -> list[str]:
    """Return the groups for which a test needs hooks."""
    return [name for mark in item.iter_markers("hotplate_groups") for name in mark.args]


def _server_of(item: pytest.Item) -> ServerUnderTest | None:
    used = getattr(item, "funcargs", None) or {}
    server: ServerUnderTest | None = used.get("server") or used.get("booted_server")
    # Tests may have a fixture of their own with this name.
    return server if hasattr(server, "leave_evidence") else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a test once when its machine was lost, never for a failed assertion."""
    others = item.config.getoption("reruns", None)  # pytest-rerunfailures repeats tests itself
    if others or IMAGE not in getattr(item, "fixturenames", ()):
        return None
    # pytest has no public function for the phases of one test.
    from _pytest.runner import runtestprotocol

    item.stash[_NEXT] = nextitem
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    # Not reported yet: of two tries only the second one is.
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if item.stash.get(_LOST, False) and any(report.failed for report in reports):
        item.stash[_LOST] = False
        lost = "the machine was lost, which says nothing about the image; trying once more"
        _say(item.config, f"{item.name}: {lost}")
        # The second try has an outcome of its own.
        item.user_properties[:] = [
            each for each in item.user_properties if each[0] != outcomes.PROPERTY
        ]
        item.user_properties.append((AGAIN, lost))
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # pytest's own implementation does not run the test as well.
    return True


def _settings(config: pytest.Config) -> Settings:
    given = {
        "machine": options.value(config, "machine"),
        "cpu": options.value(config, "cpu"),
        "artifacts": options.value(config, "artifacts"),
        "keep_runs": options.value(config, "keep-runs"),
        # Without the switch, the environment and the file decide.
        "allow_backing": options.value(config, "allow-backing") or None,
        "lift_limits": options.value(config, "lift-limits") or None,
    }
    return Settings.load(given, environ=os.environ, directory=config.rootpath)


@pytest.fixture(scope="session")
def hotplate_settings(pytestconfig: pytest.Config) -> Settings:
    """Return the settings: from the command line, the environment, ``hotplate.toml``."""
    with one_sentence():
        return _settings(pytestconfig)


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest, hotplate_settings: Settings) -> Image:
    """Return the image under test."""
    from hotplate.testbed.boot_images import open_image

    if request.param is None:
        pytest.fail(REQUIRED, pytrace=False)
    with one_sentence():
        return open_image(request.param, hotplate_settings)


@pytest.fixture(scope="session")
def cloud_images(pytestconfig: pytest.Config) -> Mapping[str, Path]:
    """Return additional images by name, for templates; a repository may define its own fixture."""
    from hotplate.image import named

    with one_sentence():
        return named.parse(options.value(pytestconfig, "cloud-image"))


def _folder(config: pytest.Config) -> Path:
    """Return the folder of this run in the artifacts; the first call makes it.

    :raises HotplateError: when it cannot be made.
    """
    from hotplate.report.artifacts import Artifacts, remove_old_runs

    if _FOLDER not in config.stash:
        given = getattr(config, "workerinput", {}).get(FOLDER)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "pytest")
        if given is not None:
            folder = Path(given) / worker
            folder.mkdir(mode=0o700)
        else:
            settings = _settings(config)
            base = settings.artifacts.absolute()
            if settings.keep_runs:
                for problem in remove_old_runs(base, settings.keep_runs):
                    _say(config, problem)
            artifacts = Artifacts(base, worker)
            artifacts.point()
            # Holds the folder until the session ends.
            config.stash[_ARTIFACTS] = artifacts
            folder = artifacts.folder
        config.stash[_FOLDER] = folder
    return config.stash[_FOLDER]


def _say(config: pytest.Config, text: str) -> None:
    """Print a message in spite of pytest's capturing."""
    with _uncaptured(config):
        print(f"\nhotplate: {clean(text)}", file=sys.stderr, flush=True)


def _uncaptured(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else contextlib.nullcontext()


@pytest.fixture(scope="session")
def _supply(
    request: pytest.FixtureRequest,
    image: Image,
    hotplate_settings: Settings,
    cloud_images: Mapping[str, Path],
) -> Iterator[ServerPool | CloudPool]:
    from hotplate.plugin.pool import open_pool
    from hotplate.report.artifacts import DATABASES, Folder
    from hotplate.testbed.boot_images import open_images

    with contextlib.ExitStack() as owned:
        if not options.value(request.config, "keep"):
            # Closed in reverse: when nothing uses the databases any more.
            owned.callback(lambda: Folder(_folder(request.config)).remove(DATABASES))
        if options.value(request.config, "os-cloud"):
            yield owned.enter_context(_in_cloud(request.config, image, hotplate_settings))
            return
        with one_sentence():
            cold = bool(options.value(request.config, "cold"))
            # An image with a saved state has an agent.
            agent = reader = not cold and _has_state(image, hotplate_settings)
            if not agent:
                agent, reader = _agent_and_reader(image, hotplate_settings)
            if not agent:
                _say(request.config, f"{image} {NO_AGENT}")
            pool = owned.enter_context(
                open_pool(
                    image,
                    hotplate_settings,
                    _folder(request.config),
                    agent=agent,
                    reader=reader,
                    cold=cold,
                    say=lambda text: _say(request.config, text),
                    others=open_images(cloud_images, hotplate_settings),
                )
            )
        yield pool


def _has_state(image: Image, settings: Settings) -> bool:
    from hotplate.testbed import warm_state

    # What this host lacks is said when the state is used.
    with contextlib.suppress(HotplateError):
        return warm_state.find(image, settings) is not None
    return False


def _agent_and_reader(image: Image, settings: Settings) -> tuple[bool, bool]:
    """Return False for what an image has not by its inspection: an agent, a metadata reader."""
    from hotplate.inspection.inspection import inspected

    with (
        # An image that cannot be read may have both.
        contextlib.suppress(HotplateError),
        inspected(image.path, **settings.reading) as inspection,
    ):
        if (contents := inspection.contents) is not None:
            return contents.runs_deployments, bool(contents.metadata_reader)
    return True, True


@contextlib.contextmanager
def _in_cloud(config: pytest.Config, image: Image, settings: Settings) -> Iterator[CloudPool]:
    """Supply servers of a cloud."""
    from hotplate.elsewhere.ways import WayOptions
    from hotplate.plugin.cloud_pool import Place, open_cloud_pool

    # The short name is that of testinfra's own plug-in, when installed, with the same meaning.
    ssh_config = options.value(config, "ssh-config") or config.getoption("ssh_config", None)
    place = Place(
        cloud=options.value(config, "os-cloud"),
        flavor=options.value(config, "os-flavor") or "m1.small",
        network=options.value(config, "os-network") or "",
        ways=WayOptions(
            jump=options.value(config, "ssh-jump") or "",
            config=Path(ssh_config) if ssh_config else None,
            user=options.value(config, "ssh-user") or "",
            environment=dict(os.environ),
        ),
    )
    with contextlib.ExitStack() as owned:
        with one_sentence():
            pool = owned.enter_context(
                open_cloud_pool(
                    image, settings, _folder(config), place, say=lambda text: _say(config, text)
                )
            )
        yield pool


@pytest.fixture(scope="session")
def _testbed(request: pytest.FixtureRequest, _supply: ServerPool) -> Testbed:
    if options.value(request.config, "os-cloud"):
        pytest.skip("it asks for the embedded cloud, and its servers are in another (--os-cloud)")
    return _supply.testbed


@pytest.fixture
def cloud(_testbed: Testbed) -> Iterator[Cloud]:
    """Yield the embedded cloud: ``cloud.heat()``, ``cloud.fault(...)``, ``cloud.endpoints``."""
    yield _testbed.cloud
    _testbed.cloud.faults.clear()


def _use(request: pytest.FixtureRequest, pool: ServerPool | CloudPool) -> Iterator[ServerUnderTest]:
    node: Any = request.node
    node.stash[_PROBLEM] = ""
    with one_sentence():
        another = _is_like(node, node.stash.get(_NEXT, None))
        server = pool.server(cold=_is_cold(node), another=another)
    try:
        if missing := [name for name in _groups(node) if not server.has_hook(name)]:
            pytest.skip(f"the image has no hook for {', '.join(missing)}")
        yield server
        _look_back(request, pool, server)
    finally:
        # Whatever went wrong, the next test can get a server.
        pool.clear_faults()
        pool.give_back(server)


def _is_cold(item: pytest.Item) -> bool:
    return item.get_closest_marker("hotplate_cold") is not None


def _is_like(node: Any, following: Any) -> bool:
    """Return whether the next test is going to use a restored server of the same image."""
    if "server" not in getattr(following, "fixturenames", ()) or _is_cold(following):
        return False
    mine, its = (getattr(each, "callspec", None) for each in (node, following))
    return bool(mine and its and mine.params.get(IMAGE) == its.params.get(IMAGE))


def _look_back(
    request: pytest.FixtureRequest, pool: ServerPool | CloudPool, server: ServerUnderTest
) -> None:
    """After a test: pause for the user, explain a failure, and leave the evidence."""
    node: Any = request.node
    problem: str = node.stash[_PROBLEM]
    keep = options.value(request.config, "keep")
    if keep or (problem and options.value(request.config, "pause-on-fail")):
        _pause(request.config, server)
    pool.clear_faults()
    diagnosis = None
    if problem:
        diagnosis = _explain(server)
        # Captured by pytest, and so a part of the failed test's report.
        print(f"hotplate: evidence of {node.name} is in {server.directory}", file=sys.stderr)
        node.stash[_LOST] = server.lost
    # The result of a test does not depend on its evidence.
    with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
        server.leave_evidence(node.name, problem=problem, diagnosis=diagnosis, whole=keep)


def _explain(server: ServerUnderTest) -> Diagnosis | None:
    """Add the results of its deployments, and the reason of a failure, to a test's report."""
    for deployment in server.deployments:
        print(clean(f"hotplate: {deployment}"), file=sys.stderr)
    if not server.deployments or server.deployments[-1].status == "COMPLETE":
        return None
    with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
        diagnosis = server.diagnosis()
        print(f"hotplate: {diagnosis}", file=sys.stderr)
        return diagnosis
    return None


def _pause(config: pytest.Config, server: ServerUnderTest) -> None:
    """Keep the server up for the user, in spite of pytest's capturing."""
    with _uncaptured(config):
        print(flush=True)
        server.pause(say=lambda text: print(f"hotplate: {clean(text)}", flush=True))


@pytest.fixture
def server(request: pytest.FixtureRequest, _supply: ServerPool) -> Iterator[ServerUnderTest]:
    """Yield a running server that no other test has touched."""
    yield from _use(request, _supply)


@pytest.fixture(scope="module")
def booted_server(request: pytest.FixtureRequest, _supply: ServerPool) -> Iterator[ServerUnderTest]:
    """Yield a running server that the tests of a module share."""
    yield from _use(request, _supply)


@pytest.fixture
def stack(
    request: pytest.FixtureRequest, _testbed: Testbed
) -> Iterator[Callable[..., StackUnderTest]]:
    """Create a stack from a template file: ``stack("web.yaml", flavor="m1.small").wait()``.

    Its stacks are deleted when the test ends.
    """
    from hotplate.plugin.stack import StackUnderTest

    node: Any = request.node
    node.stash[_PROBLEM] = ""
    made: list[StackUnderTest] = node.stash.setdefault(_STACKS, [])

    def create(template: str | Path, **parameters: Any) -> StackUnderTest:
        made.append(StackUnderTest.begin(_testbed, Path(template), parameters))
        return made[-1]

    yield create
    # The result of a test does not depend on its evidence.
    with contextlib.suppress(Exception):
        _look_back_at_stacks(request, _testbed, made)
    for each in made:
        each.forget()
    del node.stash[_STACKS]


def _look_back_at_stacks(
    request: pytest.FixtureRequest, testbed: Testbed, stacks: Sequence[StackUnderTest]
) -> None:
    """After a test: pause for the user, and leave the evidence of the stacks' servers."""
    node: Any = request.node
    problem: str = node.stash[_PROBLEM]
    keep = options.value(request.config, "keep")
    servers = [server for each in stacks for server in each.running_servers()]
    if servers and (keep or (problem and options.value(request.config, "pause-on-fail"))):
        from hotplate.session import access

        with _uncaptured(request.config):
            print(flush=True)
            access.pause(
                testbed,
                [up for each in servers if (up := testbed.server(each.id)) is not None],
                servers[0].directory / "doors",
                say=lambda text: print(f"hotplate: {clean(text)}", flush=True),
            )
    testbed.cloud.faults.clear()
    for server in servers if problem else ():
        print(f"hotplate: evidence of {node.name} is in {server.directory}", file=sys.stderr)
        note(node, server)
        with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
            server.leave_evidence(node.name, problem=problem, whole=keep)


@pytest.fixture
def run_hook(pytestconfig: pytest.Config) -> Iterator[HookRuns]:
    """Run a hook on this host, without a guest: ``run_hook("hooks/mine.py", "config").status``."""
    from hotplate.hookkit.run import scratch_directory
    from hotplate.plugin.hook_runs import HookRuns

    with scratch_directory() as scratch:
        yield HookRuns(scratch, pytestconfig.rootpath, os.environ)


@pytest.fixture
def hook_deployment() -> Callable[..., dict[str, Any]]:
    """Make deployments as a hook reads them: ``hook_deployment("config", inputs={"a": 1})``."""
    from hotplate.plugin.hook_runs import deployment

    return deployment
