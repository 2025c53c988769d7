"""Images that many tests boot, and fixtures that run the hotplate command."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hotplate.cloud.options import CloudOptions
    from hotplate.plugin.pool import ServerPool
    from hotplate.plugin.server import ServerUnderTest
    from hotplate.testbed.testbed import Testbed

REPOSITORY = Path(__file__).resolve().parents[2]
SEEDS = REPOSITORY / "tests" / "seeds"
RUN_SECONDS = 1500


#: On both kinds of machine: in a container in each run, and under QEMU in tools/check --all.
BOTH = [
    pytest.param("container", id="container"),
    pytest.param("qemu", id="qemu", marks=[pytest.mark.qemu, pytest.mark.long]),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the tests that are marked so QEMU, or both kinds of machine."""
    kinds = []
    if metafunc.definition.get_closest_marker("both_machines"):
        kinds = BOTH
    elif metafunc.definition.get_closest_marker("qemu"):
        kinds = ["qemu"]
    if kinds:
        metafunc.parametrize("machine", kinds, indirect=True, scope="module")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test that has an image built, which takes root and packages from the network."""
    if "images" in getattr(item, "fixturenames", ()):
        for name in ("builds", "root", "network"):
            item.add_marker(name)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of an xdist_group in one worker, with ``--dist loadgroup``.

    pytest-xdist 3.8 writes an id with the group's name to ``_nodeid``, which pytest 9.2 does not
    read: the servers of a module would be booted in each worker.
    """
    for item in items:
        grouped = getattr(item, "_nodeid", "")
        if hasattr(item, "_id") and grouped.startswith(f"{item.nodeid}@"):
            item._id = type(item._id).parse(grouped)


@pytest.fixture(scope="module", autouse=True)
def machine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Choose the kind of machine of a test's guests: a container, unless it is marked qemu.

    The harness and the commands that tests run take it from the environment.
    """
    kind: str = getattr(request, "param", "container")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOTPLATE_MACHINE", kind)
        yield kind


@dataclass(frozen=True)
class Done:
    """A completed hotplate command."""

    status: int
    stdout: str
    stderr: str
    verdict: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()

    @property
    def last_line(self) -> str:
        return self.stdout.rstrip().splitlines()[-1] if self.stdout.strip() else ""

    @property
    def console(self) -> str:
        """The console of the run's only server."""
        (log,) = (self.folder / "servers").glob("*/console.log")
        return log.read_text(errors="replace")


def _hotplate(
    *words: object,
    cwd: Path | None = None,
    timeout: int = RUN_SECONDS,
    environment: Mapping[str, str] | None = None,
    runner: Sequence[object] = (),
) -> Done:
    """Run the hotplate command to its end, by the program *runner* if any."""
    done = subprocess.run(
        [*map(str, runner), sys.executable, "-m", "hotplate", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        cwd=cwd or REPOSITORY,
        env=environment,
    )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def seeds() -> Path:
    """The directory of the project's seed templates."""
    return SEEDS


#: For tests that run in tools/check --all only; others share the images with all hooks.
@pytest.fixture(scope="session")
def bookworm(images) -> Path:
    return images.get("bookworm", "disk")


@pytest.fixture(scope="session")
def trixie(images) -> Path:
    return images.get("trixie", "partition")


@pytest.fixture(scope="session")
def without_cloud_init(images) -> Path:
    """An image of trixie without cloud-init, which boots in half the time."""
    return images.get("trixie", "partition", "script", "--no-cloud-init")


@pytest.fixture(scope="session")
def uefi_disk(images) -> Path:
    """A whole disk for UEFI, with systemd-boot."""
    return images.get("trixie", "disk", "script", "--no-cloud-init", "--firmware", "uefi")


@pytest.fixture(scope="session")
def signed(images) -> Path:
    """A whole disk for Secure Boot; it has an SSH server, too."""
    words = ("--no-cloud-init", "--secure-boot", "--package", "openssh-server")
    return images.get("bookworm", "disk", "script", *words)


#: The groups whose tools are in the image and need no network when they run.
ALL_HOOKS = "script,puppet,salt,cfn-init,ansible,apply-config,hiera,json-file"


@pytest.fixture(scope="session")
def all_hooks_bookworm(images) -> Path:
    return images.get("bookworm", "disk", ALL_HOOKS)


@pytest.fixture(scope="session")
def all_hooks_trixie(images) -> Path:
    return images.get("trixie", "partition", ALL_HOOKS)


@pytest.fixture(scope="module")
def testbed_of(tmp_path_factory, machine) -> Iterator[Callable[..., Testbed]]:
    """Return a function that opens an image's testbed for all tests of a module.

    It takes settings as keywords, further images as ``others``, and options of the cloud.

    :param machine: asked for, so that another kind of machine has another testbed.
    """
    # Imported late: it imports Heat, and most tests only run the command.
    from hotplate.events.log import EventLog
    from hotplate.image.inspect import Image
    from hotplate.testbed.testbed import Testbed
    from tests.booted.run_settings import settings_of_this_run

    with contextlib.ExitStack() as opened:

        def make(
            image: Path,
            *,
            others: Mapping[str, Image] | None = None,
            options: CloudOptions | None = None,
            **settings: Any,
        ) -> Testbed:
            testbed = Testbed(
                Image.open(image),
                settings=settings_of_this_run(**settings),
                directory=tmp_path_factory.mktemp("testbed"),
                events=EventLog(),
                others=others,
                options=options,
            )
            return opened.enter_context(testbed)

        yield make


@pytest.fixture(scope="module")
def testbed(testbed_of, without_cloud_init) -> Testbed:
    """The testbed of the image without cloud-init; modules of other images override this."""
    return testbed_of(without_cloud_init)


@pytest.fixture(scope="module")
def good(testbed) -> ServerUnderTest:
    """A server that works while another one attacks."""
    from hotplate.plugin.pool import LocalPlatform
    from hotplate.plugin.server import ServerUnderTest
    from hotplate.testbed import warm_state
    from tests.booted.hostile import works

    server = ServerUnderTest(LocalPlatform(testbed, warm_state.boot(testbed)))
    # Modules imported at the first deployment must not count as growth by an attack.
    works(server, "first")
    return server


@pytest.fixture(scope="module")
def pool_of(tmp_path_factory, machine) -> Iterator[Callable[[Path], ServerPool]]:
    """Return a function that opens a pool of servers, booted once and then restored."""
    from hotplate.image.inspect import Image
    from hotplate.plugin.pool import open_pool
    from tests.booted.run_settings import settings_of_this_run

    with contextlib.ExitStack() as opened:

        def make(image: Path) -> ServerPool:
            pool = open_pool(
                Image.open(image),
                settings_of_this_run(),
                tmp_path_factory.mktemp("pool"),
                cold=False,
                say=print,
            )
            return opened.enter_context(pool)

        yield make


@pytest.fixture(scope="module")
def pool(request, machine, pool_of) -> ServerPool:
    """Servers of the image with all hooks; under QEMU, of the image that boots in half the time."""
    image = "all_hooks_trixie" if machine == "container" else "without_cloud_init"
    return pool_of(request.getfixturevalue(image))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this checkout."""
    directory = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", directory)
    subprocess.run([*build, REPOSITORY], check=True, timeout=300)
    (path,) = directory.iterdir()
    return path


@pytest.fixture
def test_image(tmp_path):
    """Run ``hotplate test`` with the artifacts below the test's own directory."""

    def run(
        image: Path, *words: object, name: str = "artifacts", runner: Sequence[object] = ()
    ) -> Done:
        base = tmp_path / name
        document = tmp_path / f"{name}.json"
        words = ("test", image, "--artifacts", base, "--json", document, *words)
        done = _hotplate(*words, runner=runner)
        verdict = json.loads(document.read_text()) if document.exists() else {}
        folder = (base / "last").resolve() if (base / "last").exists() else base
        return Done(done.status, done.stdout, done.stderr, verdict, folder)

    return run


@pytest.fixture
def plain(tmp_path):
    """Return a function that writes a template of one server with user data only."""

    def write(user_data: str) -> Path:
        given = {"image": "any", "flavor": "any", "user_data_format": "RAW", "user_data": user_data}
        server = {"type": "OS::Nova::Server", "properties": given}
        path = tmp_path / "stack.yaml"
        path.write_text(
            json.dumps({"heat_template_version": "2018-08-31", "resources": {"server": server}})
        )
        return path

    return write


@pytest.fixture
def nothing_left(tmp_path):
    """Check after the test that it left no QEMU, swtpm, mount or loop device."""
    yield
    assert _machines_of(tmp_path) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    loops = subprocess.run(["losetup", "--list", "--output", "BACK-FILE"], capture_output=True)
    assert str(tmp_path) not in loops.stdout.decode()


def _machines_of(directory: Path) -> list[str]:
    """Return the command lines of QEMU and swtpm whose working directory is below *directory*."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                where = (entry / "cwd").readlink()
            except OSError:
                continue
            if re.search("qemu-system|swtpm", line) and where.is_relative_to(directory):
                lines.append(line)
    return lines


@pytest.fixture
def machines(tmp_path):
    """Return the QEMU processes that run below the test's directory or another one."""
    return lambda directory=tmp_path: _machines_of(directory)


@pytest.fixture
def hotplate():
    """Run the hotplate command to its end."""
    return _hotplate
