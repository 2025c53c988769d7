"""hotplate.trial.watch.Watch: the end of a stack, and the end of the wait for it."""

import errno
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotplate.errors import Outcome, ThreadFault, outcome_of
from hotplate.events.background import Background
from hotplate.events.classify import STACK_TYPE
from hotplate.events.log import EventLog
from hotplate.settings import Settings
from hotplate.timing.deadline import DeadlineExceeded
from hotplate.trial.guest_probe import save_logs, wait_for_boot
from hotplate.trial.watch import NEW_REQUESTS, Watch
from hotplate.verdict.noticed import notice

HERE = Path("/nonexistent")


def watch(events, *, patience=0.2, limit=60, **callbacks):
    given = {"patience": patience, "limit": limit}
    settings = Settings.load(given, environ={}, directory=HERE)
    return Watch(events, settings, on_server=lambda server: None, **callbacks)


def stack_event(events, status, *, name="s", action="CREATE", reason=""):
    events.emit(
        "stack",
        "resource",
        stack=name,
        resource=name,
        type=STACK_TYPE,
        action=action,
        status=status,
        reason=reason,
    )


def test_end_of_stack_is_reported_by_heat():
    events = EventLog()
    waiting = watch(events)
    stack_event(events, "IN_PROGRESS")
    stack_event(events, "COMPLETE", name="another")
    stack_event(events, "COMPLETE", action="UPDATE")
    stack_event(events, "FAILED", reason="the hook failed")
    end = waiting.stack("s", "CREATE")
    assert (end.status, end.reason) == ("CREATE_FAILED", "the hook failed")


def polls(events):
    poll = {"method": "GET", "path": "/v1/", "status": 200, "action": "DescribeStackResource"}
    for _ in range(50):
        events.emit("cfn", "request", server="a", **poll)


def requests_of_host(events):
    for number in range(50):
        asked = {"method": "GET", "path": f"/v2.1/servers/{number}", "status": 200, "side": "host"}
        events.emit("nova", "request", **asked)


def running_job(events):
    for second in range(50):
        text = f"[ *** ] A start job is running for site.service ({second}s / no limit)"
        events.emit("console", "line", server="a", text=text)


def restarts(events):
    """A unit that fails, and that systemd starts again every few seconds."""
    for number in range(50):
        seconds = 20 + 5.4 * number
        for text in (
            f"[{seconds:8.4f}] heat-config-bootstrap[{300 + number}]: there is no metadata yet",
            f"[{seconds:8.4f}] systemd[1]: bootstrap.service: Scheduled restart job, restart "
            f"counter is at {number}.",
            "[FAILED] Failed to start bootstrap.service - Heat's files.",
        ):
            events.emit("console", "line", server="a", text=text)


def ever_new_requests(events):
    for number in range(NEW_REQUESTS + 10):
        events.emit("metadata", "request", server="a", method="GET", path=f"/{number}", status=404)


@pytest.mark.parametrize(
    ("happens", "news"),
    [
        (lambda events: None, 0),
        (polls, 1),
        (requests_of_host, 0),
        (running_job, 0),
        (restarts, 9),
        (ever_new_requests, NEW_REQUESTS),
    ],
)
def test_repetition_is_no_news(happens, news):
    events = EventLog()
    waiting, other = watch(events), watch(EventLog())
    happens(events)
    assert sum(other._is_new(event) for event in events) == news
    end = waiting.stack("s", "CREATE")
    assert end.status == "CREATE_IN_PROGRESS"
    assert "nothing new was seen" in end.reason


@pytest.mark.parametrize(
    ("source", "kind", "facts", "why"),
    [
        ("console", "line", {"text": "Kernel panic - not syncing: no init"}, "console shows"),
        ("machine", "exit", {"reason": "lost", "status": -9, "message": ""}, "machine was lost"),
        ("machine", "exit", {"reason": "guest-panic", "status": 1, "message": ""}, "guest's init"),
        ("harness", "flood", {"fault": "console-flood", "text": "too much"}, "too much"),
    ],
)
def test_end_of_guest_ends_the_wait_at_once(source, kind, facts, why):
    events = EventLog()
    waiting = watch(events, patience=60)
    events.emit(source, kind, server="a", **facts)
    assert why in waiting.stack("s", "CREATE").reason


def test_server_waiting_for_memory_is_not_silent():
    """The image is not responsible for the machines that hold the memory."""
    events, texts = EventLog(), []
    waiting = watch(events, patience=0.05, on_waiting=texts.append)
    events.emit("harness", "waiting", server="a", name="web", text="waiting for memory: ...")
    later = threading.Timer(0.3, stack_event, (events, "COMPLETE"))
    later.start()
    assert waiting.stack("s", "CREATE").status == "CREATE_COMPLETE"
    later.join()
    assert texts == ['"web": waiting for memory: ...']
    events.emit("machine", "power-on", server="a", pid=1, restored=False)
    assert waiting.stack("s", "UPDATE").status == "UPDATE_IN_PROGRESS"


def test_deleted_server_is_not_awaited_without_end():
    events = EventLog()
    waiting = watch(events, patience=0.05, limit=0.1)
    events.emit("harness", "waiting", server="a", name="web", text="waiting for memory: ...")
    assert waiting.stack("s", "CREATE").status == "CREATE_IN_PROGRESS"


def test_wait_ends_at_limit_before_patience():
    events = EventLog()
    waiting = watch(events, patience=60, limit=0.2)
    assert "not finished" in waiting.stack("s", "CREATE").reason


@pytest.mark.parametrize("wait", ["stack", "until"])
def test_fault_in_own_thread_ends_the_wait_at_once(wait):
    """It must not be taken for silence of the guest."""
    events = EventLog()
    waiting = watch(events, patience=6000, limit=6000)

    def work() -> None:
        raise KeyError("boom")

    thread = Background(events, work, name="console")
    later = threading.Timer(0.2, thread.start)
    later.start()
    with pytest.raises(ThreadFault, match='in the thread "console": KeyError'):
        waiting.stack("s", "CREATE") if wait == "stack" else waiting.until(lambda: False)
    later.join()


def test_fault_of_one_request_does_not_end_the_wait():
    events = EventLog()
    waiting = watch(events, patience=60)
    events.doubt(RuntimeError("boom"))
    stack_event(events, "COMPLETE")
    assert waiting.stack("s", "CREATE").status == "CREATE_COMPLETE"


def test_full_disk_ends_the_wait():
    """Heat's database cannot take the end of the stack."""
    events = EventLog()
    waiting = watch(events, patience=60)
    events.doubt(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(ThreadFault) as caught:
        waiting.stack("s", "CREATE")
    assert outcome_of(caught.value) is Outcome.HOST


def test_guests_at_rest_end_the_wait(monkeypatch):
    monkeypatch.setattr("hotplate.trial.watch.LOOK_SECONDS", 0.05)
    asked = []

    def at_rest() -> str:
        asked.append(1)
        return "came to rest" if len(asked) == 3 else ""

    waiting = watch(EventLog(), patience=60, at_rest=at_rest)
    end = waiting.stack("s", "CREATE")
    assert (end.status, end.reason) == ("CREATE_IN_PROGRESS", "came to rest")


def test_event_during_a_look_is_seen_first(monkeypatch):
    monkeypatch.setattr("hotplate.trial.watch.LOOK_SECONDS", 0.05)
    events = EventLog()

    def at_rest() -> str:
        stack_event(events, "COMPLETE")
        return "came to rest"

    waiting = watch(events, patience=60, at_rest=at_rest)
    assert waiting.stack("s", "CREATE").status == "CREATE_COMPLETE"


def test_due_stage_after_end_of_stack_is_awaited():
    events = EventLog()
    waiting = watch(events, patience=60)
    done = []
    events.subscribe(lambda event: done.append(event.kind) if event.kind == "poll" else None)
    stack_event(events, "COMPLETE")
    events.emit("cfn", "poll", server="a")
    assert waiting.stack("s", "CREATE").status == "CREATE_COMPLETE"
    assert waiting.until(lambda: bool(done)) == ""


def test_missing_stage_after_end_of_stack_is_given_up():
    events = EventLog()
    waiting = watch(events)
    stack_event(events, "COMPLETE")
    assert waiting.stack("s", "CREATE").status == "CREATE_COMPLETE"
    assert "nothing new was seen" in waiting.until(lambda: False)


class SlowBoot:
    """A stub of a connection to a guest, whose boot ends or not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.commands: list[str] = []

    def run(self, command, *, timeout):
        self.commands.append(command)
        if self.error:
            raise self.error


def test_ended_boot_is_not_reported():
    guest = SlowBoot()
    assert wait_for_boot(lambda: guest, seconds=5) == ""
    by_systemd, _, by_cloud_init = guest.commands[0].partition("test -e")
    assert "systemctl is-system-running --wait" in by_systemd
    assert "cloud-init status --wait" in by_cloud_init


def test_unfinished_boot_is_reported():
    why = wait_for_boot(lambda: SlowBoot(DeadlineExceeded("waiting")), seconds=5)
    assert why == "its boot has not ended after another 5 s"


class Answering:
    """A guest that answers each command with one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.machine = SimpleNamespace(running=True)
        self.spec = SimpleNamespace(id="a")

    def guest(self, *, seconds):
        del seconds
        return self

    def run(self, command, *, timeout):
        del command, timeout
        return SimpleNamespace(stdout=self.text.encode(), rc=0)


def test_clock_of_guest_is_read_when_its_logs_are_saved(tmp_path):
    events = EventLog()
    save_logs(Answering("631152000\n"), tmp_path / "guest", events=events)
    (seen,) = notice(events, {"a": ""})
    assert seen.kind == "wrong-clock"


def test_standard_checks_are_made_when_logs_are_saved(tmp_path):
    events = EventLog()
    text = (
        "=== state\nrunning\n=== machine-id\n=== time\nntpd\n=== cmdline\nconsole=ttyS0\n=== end\n"
    )
    save_logs(Answering(text), tmp_path / "guest", events=events)
    (seen,) = notice(events, {"a": ""})
    assert (seen.kind, seen.wrong) == ("machine-id-not-set", True)


def test_hook_at_work_is_awaited_in_silence():
    """A correct script may be silent for longer than anybody's patience."""
    events, texts, asked = EventLog(), [], []

    def at_work() -> str:
        asked.append(1)
        # The patience has passed for the third time; a timer might be before it on a slow host.
        if len(asked) == 3:
            stack_event(events, "COMPLETE")
        return 'the hook of "deployment"'

    waiting = watch(events, patience=0.05, on_waiting=texts.append, at_work=at_work)
    assert waiting.stack("s", "CREATE").status == "CREATE_COMPLETE"
    (text,) = texts
    assert 'waiting for the hook of "deployment", which is at work, 60 s in all at most' in text
    assert waiting.given_up == ""


@pytest.mark.parametrize("what", ['the hook of "deployment"', ""])
def test_given_up_run_reports_work_in_progress(what):
    waiting = watch(EventLog(), patience=0.05, limit=0.2, at_work=lambda: what)
    assert waiting.stack("s", "CREATE").status == "CREATE_IN_PROGRESS"
    assert waiting.given_up.endswith(f"with {what} at work" if what else "")
    assert bool(waiting.given_up) == bool(what)


def test_line_with_another_number_is_news():
    """A script that counts its progress is at work."""
    events = EventLog()
    waiting = watch(events)
    for number in range(50):
        events.emit("console", "line", server="a", text=f"[ 30.1] setup[411]: {number} of 50 done")
    assert all(waiting._is_new(event) for event in events)
