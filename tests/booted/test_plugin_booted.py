"""The pytest plug-in with machines: restored for each test, isolated, breakable."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from hotplate.cloud.heat import engine
from hotplate.container.machine import LAYER
from hotplate.image.inspect import Image
from hotplate.plugin.pool import open_pool
from hotplate.settings import cache_dir
from hotplate.testbed import warm_state as warm
from hotplate.testbed.maker import DISKS
from hotplate.timing.deadline import Deadline, retry
from tests.booted.run_settings import settings_of_this_run

pytestmark = pytest.mark.boots

SECONDS = 3600
#: Seconds after which pytest prints the stacks of its threads.
STACK_SECONDS = 600

FIVE = """
    import json
    import time
    from pathlib import Path

    import pytest

    SEEN = Path(__file__).with_name("seen.jsonl")

    BOOTED = "systemctl show --value --property=UserspaceTimestampMonotonic"

    @pytest.mark.parametrize("number", range(5))
    def test_hook(server, number):
        deployment = server.deploy(
            group="script",
            config="#!/bin/sh\\ntest ! -e /root/used || exit 9\\n: > /root/used\\n"
            "printf %s \\"$word\\" > $heat_outputs_path.back\\necho out\\necho err >&2\\n",
            inputs={"word": f"word {number}"},
            outputs=["back"],
        ).wait()
        assert deployment.status == "COMPLETE", server.diagnosis()
        assert deployment.outputs["back"] == f"word {number}"
        assert deployment.outputs["deploy_stdout"] == "out\\n"
        assert deployment.outputs["deploy_stderr"] == "err\\n"
        assert deployment.outputs["deploy_status_code"] == 0
        assert len(deployment.signals) == 1
        before = time.time()
        now = float(server.run("date +%s.%N").text)
        after = time.time()
        seen = {
            "uuid": server.run("cat /proc/sys/kernel/random/uuid").text,
            "random": server.run("head -c16 /dev/urandom | od -An -tx1").text,
            "nonce": server.run("cat /run/hotplate-shell/nonce").text,
            # However long the command takes.
            "off": max(before - now, now - after),
            "deployed": server.run("ls /var/lib/heat-config/deployed").text.splitlines(),
            # A container has the clock of its host.
            "booted": int(server.run(BOOTED).text) / 1e6,
            "ended": time.monotonic(),
        }
        with SEEN.open("a") as stream:
            stream.write(json.dumps(seen) + "\\n")
"""

BREAKING = """
    SCRIPT = "#!/bin/sh\\necho done\\n"

    def deploys(server, **given):
        done = server.deploy(group="script", config=SCRIPT, **given).wait()
        assert done.status == "COMPLETE", server.diagnosis()
        assert done.outputs["deploy_stdout"] == "done\\n"

    def test_journal_and_host(server):
        deploys(server)
        assert "heat-config" in server.journal()
        assert server.host.service("os-collect-config").is_running
        assert not server.host.file("/no/such").exists
        server.copy_in(b"\\0\\xff bytes", "/root/copied", mode=0o600)
        assert server.copy_out("/root/copied") == b"\\0\\xff bytes"
        assert server.host.file("/root/copied").mode == 0o600

    def test_power_cut(server):
        server.run("echo kept > /root/kept; sync; echo lost > /run/lost").check()
        assert server.host.file("/root/kept").exists
        nonce = server.run("cat /run/hotplate-shell/nonce").text
        server.crash()
        server.start()
        assert server.host.file("/root/kept").contains("kept")
        assert not server.host.file("/run/lost").exists
        assert server.run("cat /run/hotplate-shell/nonce").text != nonce
        deploys(server)

    def test_reboot(server):
        host = server.host
        boot = host.file("/proc/sys/kernel/random/boot_id").content_string
        server.reboot()
        assert host.file("/proc/sys/kernel/random/boot_id").content_string != boot
        deploys(server)

    def test_link(server):
        server.block()
        deployment = server.deploy(group="script", config=SCRIPT)
        server.unblock()
        assert deployment.wait().status == "COMPLETE", server.diagnosis()

    def test_fault(server, cloud):
        with cloud.fault(endpoint="cfn", kind="status", status=500, count=3) as fault:
            deploys(server)
        assert fault.hits == 3

    left = []

    def test_faults_are_gone_after_a_test(server, cloud):
        left.append(cloud.fault(endpoint="cfn", kind="refuse"))
        left[0].__enter__()

    def test_after_the_faults(server):
        deploys(server)

    def test_a_deployment_that_is_left_behind(server):
        server.deploy(group="script", config="#!/bin/sh\\n: > /root/left\\nsleep 60\\n")

    def test_is_gone_for_the_next(server):
        deploys(server)
        assert not server.host.file("/root/left").exists
"""

FAILS = """
    def test_it_fails(server):
        done = server.deploy(group="script", config="#!/bin/sh\\necho sorry >&2\\nexit 3\\n").wait()
        assert done.status == "COMPLETE"
"""

NEEDS = """
    import pytest

    def deploys(server):
        done = server.deploy(group="script", config="#!/bin/sh\\n").wait()
        assert done.status == "COMPLETE", server.diagnosis()

    @pytest.mark.hotplate_cold
    def test_cold(server):
        assert not server._server.restored
        deploys(server)

    @pytest.mark.hotplate_groups("script")
    def test_restored(server):
        assert server._server.restored
        deploys(server)

    @pytest.mark.hotplate_groups("puppet")
    def test_puppet(server):
        raise AssertionError("it must not come so far")
"""

LOSES = """
    import os
    import signal
    from pathlib import Path

    TRIED = Path(__file__).with_name("tried")

    def test_loses_its_machine(server):
        first = not TRIED.exists()
        config = f"#!/bin/sh\\nsleep {600 if first else 0}\\n"
        deployment = server.deploy(group="script", config=config)
        if first:
            TRIED.touch()
            os.kill(server._server.machine.pid, signal.SIGKILL)
        assert deployment.wait().status == "COMPLETE"
"""

SHARED = """
    def test_one(booted_server):
        booted_server.run(": > /root/shared").check()

    def test_two(booted_server):
        assert booted_server.host.file("/root/shared").exists
"""

BOTH = """
    def test_both(server, booted_server):
        raise AssertionError("it must not come so far")
"""


@pytest.fixture(scope="module", autouse=True)
def heat() -> None:
    """Import Heat early: pytester unloads the modules that its tests import."""
    engine.load()


@pytest.fixture(scope="module")
def cache() -> Path:
    """The shared cache with the booted images' states; pytester has another home."""
    return cache_dir()


@pytest.fixture
def run_on(cache, pytester, monkeypatch):
    """Return a function that runs tests with the plug-in on an image."""
    monkeypatch.setenv("HOTPLATE_CACHE", str(cache))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini(
        "[pytest]\naddopts = -p no:cacheprovider --import-mode=importlib\n"
        f"faulthandler_timeout = {STACK_SECONDS}\n"
    )

    def with_options(image: Path, *options: str, **files: str):
        pytester.makepyfile(**files)
        try:
            return pytester.runpytest_subprocess(
                f"--image={image}", "--durations=0", *options, timeout=SECONDS
            )
        except pytester.TimeoutExpired as error:
            ends = [(pytester.path / each).read_text()[-3000:] for each in ("stdout", "stderr")]
            pytest.fail("\n".join([str(error), *ends]), pytrace=False)

    return with_options


@pytest.fixture
def run(run_on, without_cloud_init):
    return functools.partial(run_on, without_cloud_init)


def test_five_tests_of_a_hook_do_not_affect_each_other(run, pytester):
    done = run(test_five=FIVE)
    done.assert_outcomes(passed=5)
    seen = [json.loads(line) for line in (pytester.path / "seen.jsonl").read_text().splitlines()]
    for fresh in ("uuid", "random", "nonce"):
        assert len({each[fresh] for each in seen}) == 5, fresh
    assert max(each["off"] for each in seen) < 5
    assert {len(each["deployed"]) for each in seen} <= {len(seen[0]["deployed"])}
    # Of a server that boots when it is restored, the next one boots beside it.
    assert any(after["booted"] < each["ended"] for each, after in itertools.pairwise(seen))
    # A passed test leaves evidence but no disk, nor does the boot whose state was saved.
    files = (pytester.path / "artifacts" / "last").rglob("*")
    assert [path for path in files if path.name in DISKS] == []
    left = list((pytester.path / "artifacts" / "last").glob("*/servers/*"))
    assert len(left) == 5
    for folder in left:
        names = {path.name for path in folder.iterdir()}
        assert {"console.log", "timeline.json", "requests.jsonl", "report.html"} <= names
        assert json.loads((folder / "verdict.json").read_text())["passed"] is True


def test_broken_server_is_whole_in_the_next_test(run):
    run(test_breaking=BREAKING).assert_outcomes(passed=9)


def test_failure_gives_reason_and_evidence_and_pauses_on_request(
    run_on, all_hooks_trixie, pytester
):
    done = run_on(all_hooks_trixie, "--pause-on-fail", test_fails=FAILS)
    done.assert_outcomes(failed=1)
    text = done.stdout.str() + done.stderr.str()
    assert re.search(r'hotplate: the server "\S+" is up', text)
    for line in (
        r"ssh -F \S+/ssh-config \S+",
        r"hotplate shell --directory \S+ \S+",
    ):
        assert re.search(line, text), line
    assert re.search(r"tail -f \S+/console.log", text)
    # The ssh access is gone with the run.
    assert not list(pytester.path.glob("artifacts/*/*/servers/*/doors/control"))
    assert "hook finished" in text
    assert "status 3" in text
    assert "sorry" in text
    evidence = re.search(r"evidence of \S+ is in (\S+)", text)
    folder = Path(evidence[1])
    for name in (
        *("console.log", "timeline.json", "requests.jsonl", "report.html"),
        *("journal.txt", "cloud-init.log", "heat-config.txt", LAYER, "templates.json"),
    ):
        assert (folder / name).stat().st_size > 0, name
    assert "status 3" in (folder / "report.html").read_text()


def test_each_test_gets_the_server_that_it_asks_for(run):
    """Booted, restored, lost and shared ones; and two at once, or one without its hook."""
    done = run(
        *("--strict-markers", "-v"),
        test_needs=NEEDS,
        test_loses=LOSES,
        test_shared=SHARED,
        test_the_both=BOTH,
    )
    done.assert_outcomes(passed=5, skipped=1, errors=1)
    done.stdout.fnmatch_lines_random(
        ["test_needs.py::test_puppet* SKIPPED*", "test_the_both.py::test_both* ERROR*"]
    )
    assert 'the fixtures "server" and "booted_server" were asked for at once' in done.stdout.str()
    assert "the machine was lost, which says nothing about the image" in done.stderr.str()


def test_two_workers_share_the_warm_state(run, cache):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    done = run("-n", "2", test_five=FIVE.replace("range(5)", "range(4)"))
    done.assert_outcomes(passed=4)
    assert (done.stdout.str() + done.stderr.str()).count("once, to restore it") <= 1
    # Another worker may have made one, and remove the oldest in the next moment.
    retry(lambda _: len(warm.states(cache)) <= warm.KEPT, Deadline(60, "the oldest to go"))


def test_cold_option_boots_for_each_test(run):
    done = run("--cold", test_five=FIVE.replace("range(5)", "range(2)"))
    done.assert_outcomes(passed=2)
    assert "to restore it" not in done.stderr.str()


@pytest.fixture
def copied_state(without_cloud_init, tmp_path, monkeypatch) -> Path:
    """A copy of the image's warm state in a private cache that later runs use."""
    made = warm.find_or_make(
        Image.open(without_cloud_init),
        settings_of_this_run(),
        directory=tmp_path / "first-boot",
        say=print,
    )
    state = made.directory
    copy = tmp_path / "cache" / "warm" / state.name
    # Other workers that make states remove those that are not in use.
    with made.in_use():
        shutil.copytree(state, copy, copy_function=os.link)
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path / "cache"))
    return copy


def halve(path: Path) -> None:
    """Replace a file, which may be a hard link, by its first half."""
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[: len(whole) // 2])


@pytest.mark.long
def test_damaged_state_is_recreated_once_and_reported(run, copied_state, pytester):
    halve(copied_state / "cloud/heat.db")
    done = run(test_five=FIVE.replace("range(5)", "range(2)"))
    done.assert_outcomes(passed=2)
    text = done.stdout.str() + done.stderr.str()
    assert text.count("booting the image once more") == 1
    assert "damaged" in text
    (booted,) = pytester.path.glob("artifacts/last/*/first-boot/servers/*")
    assert [name for name in DISKS if (booted / name).exists()] == []
    done = run(test_five=FIVE.replace("range(5)", "range(1)"))
    assert "booting" not in done.stdout.str() + done.stderr.str()


@pytest.mark.qemu
@pytest.mark.long
@pytest.mark.parametrize(
    "part", ["memory", "disk.qcow2", "devices", "server.json", "cloud/heat.db"]
)
def test_damage_to_each_part_of_a_state_is_detected(
    copied_state, without_cloud_init, tmp_path, part
):
    class BootsOnceMoreError(Exception):
        pass

    def say(sentence: str) -> None:
        if "damaged" in sentence and sentence.endswith("; booting the image once more"):
            raise BootsOnceMoreError

    halve(copied_state / part)
    with (
        pytest.raises(BootsOnceMoreError),
        open_pool(
            Image.open(without_cloud_init), settings_of_this_run(), tmp_path, cold=False, say=say
        ),
    ):
        pass


DELETES = """
    import os
    import shutil
    from pathlib import Path

    def test_deletes(server):
        shutil.rmtree(Path(os.environ["HOTPLATE_CACHE"], "warm"))
        # What is running has all it needs.
        done = server.deploy(group="script", config="#!/bin/sh\\n").wait()
        assert done.status == "COMPLETE", server.diagnosis()

    def test_after_it(server):
        raise AssertionError("it must not come so far")
"""


def test_cache_deleted_during_a_run_gives_a_one_line_error(run, copied_state):
    done = run(test_five=DELETES)
    done.assert_outcomes(passed=1, errors=1)
    assert "was removed while it was used" in done.stdout.str()
    assert "Traceback" not in done.stdout.str()
    # The next run that needs the cache recreates it.
    run(test_five=FIVE.replace("range(5)", "range(1)")).assert_outcomes(passed=1)
