"""The cloud's life cycle: one at a time, stopped without a trace, restarted in its directory."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recording_cloud import RecordingCompute, Stacks, attribute, hot, resource
from stevedore import _cache
from test_software_config import TEMPLATE, booted, poll_for_deployment
from wire_guest import describe, guest

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.heat import engine, patches
from hotplate.cloud.options import CloudOptions
from hotplate.errors import UsageError
from hotplate.events.log import EventLog

VALUE = hot({"word": attribute("word", "value")}, word=resource("Heat::RandomString"))


def new_cloud(directory: Path, compute: Any = None, **options: Any) -> Cloud:
    return Cloud(
        directory=directory,
        compute=compute or RecordingCompute(),
        events=EventLog(),
        options=CloudOptions(**options),
    )


def started(*steps: Callable[[], object]) -> Callable[[int], None]:
    """Take steps in a thread; return a function that checks how many more end by themselves."""
    ended = threading.Semaphore(0)

    def run() -> None:
        for step in steps:
            step()
            ended.release()

    def check(number: int) -> None:
        assert all(ended.acquire(timeout=120) for _ in range(number))
        assert not ended.acquire(timeout=0.2)

    threading.Thread(target=run, daemon=True).start()
    return check


def test_news_during_a_poll_of_a_task_is_not_lost() -> None:
    """Nothing else wakes the task: the dependents of a resource would begin a second later."""
    waker = patches.TaskWaker()

    def poll() -> None:
        # As a resource that completes during the task's poll.
        waker.notify()
        waker.wait(3600)

    ended = started(waker.begin, poll, poll, lambda: waker.wait(3600))
    # News that it has seen does not wake it again.
    ended(3)
    waker.notify()
    ended(1)


def test_heat_messages_are_waited_for_without_polling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heat answers and stops even if the wait for a message never times out."""
    monkeypatch.setattr(patches, "MESSAGE_SECONDS", 3600.0)
    with new_cloud(tmp_path) as cloud:
        stacks = cloud.heat().stacks
        for name in ("first", "second"):
            stacks.create(stack_name=name, template=VALUE)
        assert {stack.stack_name for stack in stacks.list()} == {"first", "second"}


def test_first_wait_of_a_new_listener_returns_at_once() -> None:
    """Otherwise news between its first poll and its first wait would be lost."""
    waker = patches.Waker()
    wait = functools.partial(waker.wait, 3600)
    ended = started(waker.notify, wait, wait)
    ended(2)
    waker.notify()
    ended(1)


def test_new_task_has_seen_earlier_news() -> None:
    waker = patches.TaskWaker()
    waker.notify()
    ended = started(waker.begin, lambda: waker.wait(3600))
    ended(1)
    waker.notify()
    ended(1)


def test_state_survives_a_restart_and_a_copy(tmp_path: Path) -> None:
    compute = RecordingCompute()
    with new_cloud(tmp_path, compute) as cloud:
        stacks = Stacks(cloud)
        kept = stacks.complete(VALUE, name="kept")
        word = stacks.outputs(kept)["word"]
        waiting = stacks.create(TEMPLATE, name="waiting")
        server_id = booted(stacks, compute, waiting)
        with guest(cloud, server_id) as vm:
            cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
            poll_for_deployment(vm, cfn)
        token = cloud.identity.token(
            cloud.identity.grant(cloud.identity.user(cloud.credentials.user_id))  # type: ignore[arg-type]
        )
        cloud.copy_databases(tmp_path / "copy")
    with new_cloud(tmp_path, compute) as cloud:
        assert Stacks(cloud).outputs(kept)["word"] == word
        assert cloud.identity.read_token(token).user.name == "hotplate"
        with guest(cloud, server_id) as vm:
            assert describe(vm, cfn).status_code == 200
        Stacks(cloud).client.stacks.delete(kept)
    with new_cloud(tmp_path / "copy") as cloud:
        assert Stacks(cloud).client.stacks.get(kept).stack_status == "CREATE_COMPLETE"


def test_database_lock_is_waited_for(tmp_path: Path) -> None:
    # Of SQLite: a connection being opened can hold the write lock for a moment, which refuses the
    # first write of a transaction that began with a read.
    done = threading.Event()
    locks = 0

    def lock_now_and_then() -> None:
        nonlocal locks
        with contextlib.closing(
            sqlite3.connect(tmp_path / "heat.db", isolation_level=None, timeout=120)
        ) as database:
            while not done.wait(0.02):
                database.execute("BEGIN IMMEDIATE")
                done.wait(0.01)
                database.execute("COMMIT")
                locks += 1

    with new_cloud(tmp_path) as cloud:
        stacks = Stacks(cloud)
        thread = threading.Thread(target=lock_now_and_then)
        thread.start()
        try:
            for _ in range(3):
                stacks.complete(VALUE)
        finally:
            done.set()
            thread.join(120)
    assert locks > 10


def test_second_cloud_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with new_cloud(tmp_path / "a") as cloud:
        with (
            pytest.raises(UsageError, match="only one cloud"),
            new_cloud(tmp_path / "b"),
        ):
            pass
        # The running one is not disturbed.
        stacks = Stacks(cloud)
        stacks.complete(VALUE)
    with new_cloud(tmp_path / "b") as cloud:
        assert list(cloud.heat().stacks.list()) == []


def run_alone(script: str) -> str:
    """Return the output of a script in a process of its own, which has to end by itself."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    # Heat's own log does not reach the terminal.
    assert "heat." not in done.stderr
    return done.stdout.strip()


ALONE = """
import atexit, gc, json, sys, tempfile, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from recording_cloud import RecordingCompute, hot, ref, resource
from hotplate.cloud.cloud import Cloud
from hotplate.errors import UsageError
from hotplate.events.log import EventLog

facts = {"refusals": []}
looks = []
gc.callbacks.append(lambda phase, info: looks.append(phase))
# Before what the cloud registers, and so called after it.
atexit.register(lambda: print(json.dumps({**facts, "objects": len(gc.get_objects())})))

def cloud(path):
    return Cloud(directory=path, compute=RecordingCompute(), events=EventLog())

def use():
    with tempfile.TemporaryDirectory() as name, cloud(Path(name)) as running:
        facts.setdefault("looks", len(looks))
        facts.setdefault("goes on", gc.isenabled())
        facts.setdefault("frozen", gc.get_freeze_count())
        facts.setdefault("examined", len(gc.get_objects()))
        try:
            with cloud(Path(name, "2")):
                pass
        except UsageError as error:
            facts["refusals"].append(str(error))
        running.heat().stacks.create(stack_name="s", template=hot(
            h=resource("Heat::WaitConditionHandle"),
            w=resource("Heat::WaitCondition", handle=ref("h"), timeout=600)))

for _ in range(2):
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
facts["left"] = [t.name for t in threading.enumerate()
                 if t is not threading.main_thread() and not t.daemon]
facts["unused"] = [*{"eventlet", "pygments"} & sys.modules.keys()]
"""


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Run two clouds, one after the other, each in a thread of a new process."""
    facts: dict[str, Any] = json.loads(run_alone(ALONE))
    return facts


def test_cloud_starts_and_ends_without_garbage_collection(alone: dict[str, Any]) -> None:
    """Collections would examine all of Heat's objects, which stay, hundreds of times."""
    assert alone["looks"] <= 10
    assert alone["goes on"]
    assert alone["frozen"] > 100_000
    assert alone["examined"] < 10_000
    assert alone["objects"] <= 1000


def test_stop_leaves_no_thread(alone: dict[str, Any]) -> None:
    """Heat would end the thread of the wait condition after 600 s."""
    assert alone["left"] == []


def test_thread_that_ran_a_cloud_ends(alone: dict[str, Any]) -> None:
    """A thread that could not be joined blocked a pool of threads that run clouds one by one.

    eventlet took it for the main thread: no part of a cloud imports eventlet any more.
    """
    assert alone["refusals"] == ["only one cloud can run in a process"] * 2
    assert not alone["unused"]


def test_entry_points_are_grouped_as_by_stevedore() -> None:
    assert engine._grouped_entry_points() == _cache._build_cacheable_data()


def test_start_imports_no_unneeded_library():
    """The checker of bodies and a client are loaded with the first server (docs/design.rst).

    A user of eventlet can still import it then.
    """
    program = (
        "import sys\n"
        "from hotplate.cloud.heat import engine\n"
        "engine.load()\n"
        "import hotplate.trial.trial\n"
        "print(*sorted({'eventlet', 'jsonschema', 'novaclient'} & sys.modules.keys()))\n"
        "import eventlet"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "\n"
