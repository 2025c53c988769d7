"""The pytest plug-in: tests of images in anybody's repository.

::

    # test_motd.py;  run by:  pytest --image web.qcow2
    def test_script_writes_motd(server):
        done = server.deploy(group="script", config="#!/bin/sh\\necho hello > /etc/motd\\n").wait()
        assert done.status == "COMPLETE", done
        assert server.host.file("/etc/motd").contains("hello")

The first test of an image boots it and saves its state; every test after that starts from a
restored copy.  Several ``--image`` options run each test on each image.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hotplate.deadline import DeadlineExceeded
from hotplate.errors import HotplateError, MachineLostError, UsageError
from hotplate.settings import Settings

if TYPE_CHECKING:
    from hotplate.cloud.cloud import Cloud
    from hotplate.image.inspect import Image
    from hotplate.plate import Hotplate
    from hotplate.stack import Stack
    from hotplate.under_test import ServerUnderTest
    from hotplate.warm import WarmState

_FAILED = pytest.StashKey[bool]()
SERVERS = ("server", "booted_server")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plug-in."""
    group = parser.getgroup("hotplate", "tests of images that Heat configures")
    group.addoption(
        "--image",
        action="append",
        default=[],
        metavar="IMAGE",
        help="the image to test; given several times, each test runs on each.  Write it with the "
        '"=", or pytest takes IMAGE for a place of tests when it looks for its root directory',
    )
    group.addoption("--cold", action="store_true", help="boot for each test, restore nothing")
    group.addoption(
        "--keep",
        action="store_true",
        help="keep the folder of every test, not only of those that failed, and leave its guest "
        "up and print how to look into it, until Enter",
    )
    group.addoption(
        "--pause-on-fail",
        action="store_true",
        help="when a test fails, leave its guest up and print how to look into it, until Enter",
    )
    group.addoption("--artifacts", metavar="DIR", help="where tests leave what they saw")
    group.addoption(
        "--shard", metavar="hash:M/N", help="run the M-th of N parts, chosen by the test's name"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check what can be checked before anything runs."""
    if shard := config.getoption("--shard"):
        _parse_shard(shard)


def _parse_shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"hash:(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f'--shard "{text}" is not of the form hash:M/N with 1 <= M <= N')
    return int(found[1]), int(found[2])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to another shard."""
    if not (shard := config.getoption("--shard")):
        return
    part, parts = _parse_shard(shard)
    start = config.invocation_params.dir
    mine: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        number = int.from_bytes(hashlib.sha256(_name(item, start).encode()).digest()[:8], "big")
        (mine if number % parts == part - 1 else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = mine


def _name(item: pytest.Item, start: Path) -> str:
    """A test's name as seen from where pytest was started.

    pytest's own begins at its root directory, which depends on the paths on the command line.
    """
    return f"{os.path.relpath(item.path, start)}::{item.nodeid.partition('::')[2]}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses an image once for every ``--image``."""
    if "image" not in metafunc.fixturenames or not _ours(metafunc, "image"):
        return
    images: list[Any] = [
        pytest.param(Path(each), id=Path(each).stem)
        for each in metafunc.config.getoption("--image")
    ]
    if not images:
        why = pytest.mark.skip(reason="it tests an image, and no --image was given")
        images = [pytest.param(None, id="no-image", marks=why)]
    metafunc.parametrize("image", images, indirect=True, scope="session")


def _ours(metafunc: pytest.Metafunc, name: str) -> bool:
    """Whether the fixture of that name is this plug-in's, not one that the tests define."""
    definitions = metafunc._arg2fixturedefs.get(name, ())
    return bool(definitions) and definitions[-1].func.__module__ == __name__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember what failed, so that a fixture's end can tell, whatever its scope."""
    report = yield
    if report.failed:
        for node in item.listchain():
            node.stash[_FAILED] = True
    return report


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """What has a sentence for people is told by it, without a traceback."""
    try:
        yield
    except UsageError as error:
        pytest.exit(str(error), returncode=error.exit_status)
    except (HotplateError, DeadlineExceeded) as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def hotplate_settings(pytestconfig: pytest.Config) -> Settings:
    """The settings: from the command line, the environment, ``hotplate.toml``."""
    given = {"artifacts": pytestconfig.getoption("--artifacts")}
    with _one_sentence():
        return Settings.load(given, environ=os.environ, directory=pytestconfig.rootpath)


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> Image:
    """The image under test."""
    from hotplate.image.inspect import Image

    with _one_sentence():
        return Image.open(request.param)


@pytest.fixture(scope="session")
def hotplate_folder(hotplate_settings: Settings) -> Path:
    """The folder of this run in the artefacts; ``last`` points to it."""
    from hotplate.verdict.artefacts import Artefacts

    worker = os.environ.get("PYTEST_XDIST_WORKER", "pytest")
    with _one_sentence():
        return Artefacts(hotplate_settings.artifacts.absolute(), worker).folder


class _Plates:
    """The cloud of one image: on a warm state's database, or empty when tests boot cold."""

    def __init__(self, plate: Hotplate, state: WarmState | None) -> None:
        self.plate = plate
        self._state = state
        # Restored at once, because a state that does not restore is to be found out first.
        self._ready = None if state is None else state.restore(plate)

    def server(self) -> ServerUnderTest:
        """A server that nobody has used, restored or booted."""
        from hotplate import warm
        from hotplate.under_test import ServerUnderTest

        ready, self._ready = self._ready, None
        since = 0
        if ready is None:
            if self.plate.servers:
                pytest.fail(
                    f'the fixtures "{SERVERS[0]}" and "{SERVERS[1]}" were asked for at once, and '
                    "the image's server is there once; a module uses one or the other",
                    pytrace=False,
                )
            since = len(self.plate.events)
            with _one_sentence():
                if self._state is None:
                    ready = warm.boot(self.plate)
                else:
                    ready = self._state.restore(self.plate)
        return ServerUnderTest(self.plate, ready, since=since)

    def give_back(self, server: ServerUnderTest) -> None:
        """End a server, and take from Heat what was deployed to it, so that no other gets it."""
        self.plate.compute.delete(server.id)
        heat = self.plate.cloud.heat()
        for each in heat.software_deployments.list(server_id=server.id):
            heat.software_deployments.delete(each.id)
        for deployment in server.deployments:
            deployment.forget()


@contextlib.contextmanager
def _plates_on(
    image: Image,
    settings: Settings,
    folder: Path,
    *,
    cold: bool,
    say: Callable[[str], None],
) -> Iterator[_Plates]:
    """Open the cloud of an image on its warm state, which is made when it is not there.

    A state that is damaged is thrown away and made anew, once.
    """
    from hotplate import warm
    from hotplate.events import EventLog
    from hotplate.plate import Hotplate

    with contextlib.ExitStack() as owned:
        for last_try in (False, True):
            directory = Path(tempfile.mkdtemp(prefix=f"{image.path.stem}-", dir=folder))
            plate = Hotplate(image, settings=settings, directory=directory, events=EventLog())
            if cold:
                plates = _Plates(owned.enter_context(plate), None)
                break
            state = warm.find_or_make(image, settings, directory=directory / "first-boot", say=say)
            made_by = state.made_by
            with contextlib.ExitStack() as trial:
                try:
                    trial.enter_context(state.in_use())
                    state.lend_database(directory / "cloud")
                    plates = _Plates(trial.enter_context(plate), state)
                except MachineLostError as error:
                    if last_try:
                        raise
                    say(f"{error.message}; booting the image once more")
                else:
                    owned.push(trial.pop_all())
                    break
            warm.discard(state, made_by)
        yield plates


@pytest.fixture(scope="session")
def _plates(
    request: pytest.FixtureRequest, image: Image, hotplate_settings: Settings, hotplate_folder: Path
) -> Iterator[_Plates]:
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            print(f"\nhotplate: {text}", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as owned:
        with _one_sentence():
            plates = owned.enter_context(
                _plates_on(
                    image,
                    hotplate_settings,
                    hotplate_folder,
                    cold=request.config.getoption("--cold"),
                    say=say,
                )
            )
        yield plates


@pytest.fixture(scope="session")
def _plate(_plates: _Plates) -> Hotplate:
    return _plates.plate


@pytest.fixture
def cloud(_plate: Hotplate) -> Iterator[Cloud]:
    """The embedded cloud: ``cloud.heat()``, ``cloud.fault(...)``, ``cloud.endpoints``."""
    yield _plate.cloud
    _plate.cloud.faults.clear()


def _use(request: pytest.FixtureRequest, plates: _Plates) -> Iterator[ServerUnderTest]:
    since = len(plates.plate.events)
    node: Any = request.node
    node.stash[_FAILED] = False
    server = plates.server()
    yield server
    failed = node.stash[_FAILED]
    keep = request.config.getoption("--keep")
    if keep or (failed and request.config.getoption("--pause-on-fail")):
        _pause(request.config, server)
    plates.plate.cloud.faults.clear()
    if failed:
        _leave_evidence(plates, server, node, since)
    plates.give_back(server)
    if not failed and not keep:
        shutil.rmtree(server.directory, ignore_errors=True)


def _leave_evidence(plates: _Plates, server: ServerUnderTest, node: Any, since: int) -> None:
    """Write what was seen since the test began, and add where it lies to the report."""
    from hotplate.verdict.artefacts import event_json

    events = plates.plate.events.since(since)
    start = events[0].at if events else 0.0
    path = server.directory / "timeline.json"
    with contextlib.suppress(OSError):
        path.write_text(json.dumps([event_json(each, start) for each in events], indent=2))
    with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
        (server.directory / "journal.txt").write_text(server.journal(""))
    for deployment in server.deployments:
        print(f"hotplate: {deployment}", file=sys.stderr)
    if server.deployments and server.deployments[-1].status != "COMPLETE":
        with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
            print(f"hotplate: {server.diagnosis()}", file=sys.stderr)
    print(f"hotplate: evidence of {node.name} is in {server.directory}", file=sys.stderr)


def _pause(config: pytest.Config, server: ServerUnderTest) -> None:
    """Leave the server up for a person, past what pytest captures."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        print(flush=True)
        server.pause(say=lambda text: print(f"hotplate: {text}", flush=True))


@pytest.fixture
def server(request: pytest.FixtureRequest, _plates: _Plates) -> Iterator[ServerUnderTest]:
    """A running server that no other test has touched."""
    yield from _use(request, _plates)


@pytest.fixture(scope="module")
def booted_server(request: pytest.FixtureRequest, _plates: _Plates) -> Iterator[ServerUnderTest]:
    """A running server that the tests of a module share."""
    yield from _use(request, _plates)


@pytest.fixture
def stack(_plate: Hotplate) -> Iterator[Callable[..., Stack]]:
    """Create a stack from a template file: ``stack("web.yaml", flavor="m1.small").wait()``.

    What it has made is deleted when the test ends.
    """
    from hotplate import stack as stacks

    made: list[Stack] = []

    def create(template: str | Path, **parameters: Any) -> Stack:
        made.append(stacks.create_from_file(_plate.cloud, Path(template), parameters))
        return made[-1]

    yield create
    for each in made:
        each.forget()
