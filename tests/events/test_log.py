"""hotplate.events.log: one stream, without polling."""

import threading

import pytest

from hotplate.errors import Outcome, ThreadFault, outcome_of, sentence_of
from hotplate.events.background import Background, guarded
from hotplate.events.kinds import InternalFault
from hotplate.events.log import EventLog


def boom(*_: object) -> None:
    raise KeyError("boom")


def test_wait_finds_earlier_event():
    events = EventLog()
    events.emit("cfn", "request", server="a", status=200)
    event = events.wait(lambda e: e.server == "a", seconds=0)
    assert event is not None
    assert event.detail == {"status": 200}


def test_wait_from_index_ignores_earlier_events():
    events = EventLog()
    events.emit("cfn", "request")
    assert events.wait(lambda e: e.kind == "request", seconds=0, since=len(events)) is None


def test_wait_wakes_on_later_event():
    events = EventLog()
    timer = threading.Timer(0.05, events.emit, ("cfn", "signal"))
    timer.start()
    event = events.wait(lambda e: e.kind == "signal", seconds=30)
    timer.join()
    assert event is not None


def test_subscriber_is_called_until_it_unsubscribes():
    events = EventLog()
    heard = []
    stop = events.subscribe(heard.append)
    events.emit("cfn", "one")
    stop()
    stop()
    events.emit("cfn", "two")
    assert [event.kind for event in heard] == ["one"]


def test_log_that_is_passed_on_gives_its_events_and_faults_to_the_other():
    first, other = EventLog(), EventLog()
    heard = []
    other.subscribe(heard.append)
    first.emit("cfn", "one")
    guarded(first, boom)()
    first.pass_on(other)
    first.emit("cfn", "two")
    assert [event.kind for event in heard] == ["one", InternalFault.KIND, "two"]
    assert len(first) == 2
    with pytest.raises(ThreadFault):
        other.check()
    guarded(first, boom)()
    assert [event.kind for event in heard][-1] == InternalFault.KIND


def test_announced_event_can_be_waited_for():
    events = EventLog()
    begun, go_on = threading.Event(), threading.Event()

    def act():
        with events.coming():
            begun.set()
            go_on.wait(60)
            events.emit("cfn", "signal")

    thread = threading.Thread(target=act)
    assert events.settle(seconds=0)
    thread.start()
    assert begun.wait(60)
    assert not events.settle(seconds=0.01)
    assert len(events) == 0
    go_on.set()
    assert events.settle(seconds=60)
    assert len(events) == 1
    thread.join(60)


def test_events_from_many_threads_are_all_kept():
    events = EventLog()
    threads = [
        threading.Thread(target=lambda: [events.emit("x", "y") for _ in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events) == len(list(events)) == 800


def test_first_and_last_of_many_events_are_kept_with_their_numbers():
    events = EventLog(first=3, last=5)
    heard = []
    events.subscribe(heard.append)
    events.emit("machine", "power-on", server="a")
    for number in range(1000):
        events.emit("cfn", "request", server="a", number=number)
        if number == 500:
            mark = len(events)
            events.emit("cfn", "signal", server="a")
    assert len(heard) == len(events) == 1002
    kept = [event.detail.get("number", event.kind) for event in events]
    assert kept[:4] == ["power-on", 0, 1, 2]
    assert kept[-5:] == [995, 996, 997, 998, 999]
    assert "signal" in kept
    assert len(kept) < 20
    assert events.since(mark)[0].kind == "signal"
    event = events.wait(lambda e: e.kind == "request", seconds=0, since=mark)
    assert event is not None
    assert event.detail["number"] > 500
    assert events.wait(lambda e: e.kind == "none", seconds=0) is None


def test_flood_of_one_guest_drops_no_events_of_another():
    events = EventLog(first=2, last=2)
    events.emit("cfn", "request", server="good", number=0)
    for _ in range(100):
        events.emit("cfn", "request", server="bad")
    assert [each.detail for each in events if each.server == "good"] == [{"number": 0}]


def test_failing_subscriber_fails_only_waiting_threads():
    events, heard = EventLog(), []
    events.subscribe(boom)
    events.subscribe(heard.append)
    events.emit("cfn", "one")
    events.emit("cfn", "two")
    assert [each.kind for each in heard if each.kind != InternalFault.KIND] == ["one", "two"]
    assert len([each for each in events if InternalFault.of(each)]) == 1
    with pytest.raises(ThreadFault) as raised:
        events.wait(lambda event: event.kind == "never", seconds=60)
    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.thread == threading.current_thread().name
    assert outcome_of(raised.value) is Outcome.ERROR
    assert "hotplate itself is at fault: in the thread" in sentence_of(raised.value)
    with pytest.raises(ThreadFault):
        events.check()


def test_wait_finds_events_around_fault():
    events = EventLog()
    events.emit("cfn", "one")
    guarded(events, boom)("an argument")
    assert events.wait(lambda event: event.kind == "one", seconds=0) is not None
    since = len(events)
    events.emit("cfn", "two")
    assert events.wait(lambda event: event.kind == "two", seconds=0, since=since) is not None


def test_failing_thread_ends_wait_at_once():
    events, go = EventLog(), threading.Event()

    def work(wait: threading.Event) -> None:
        wait.wait()
        boom()

    thread = Background(events, work, go, name="reader")
    thread.start()
    events.subscribe(lambda event: go.set() if event.kind == "waits" else None)
    events.emit("cfn", "waits")
    with pytest.raises(ThreadFault, match='in the thread "reader": KeyError'):
        events.wait(lambda event: event.kind == "never", seconds=600)
    thread.join()


def test_fault_while_log_is_locked_is_kept():
    """The failing thread may itself hold the log's lock."""
    events = EventLog()
    with events._changed:
        events.fail(KeyError("boom"))
    assert events.fault is not None


def test_fault_of_one_request_ends_no_wait():
    events = EventLog()
    events.doubt(RuntimeError("one"))
    events.doubt(RuntimeError("two"))
    events.check()
    assert events.wait(lambda event: event.kind == "never", seconds=0) is None
    assert "one" in str(events.fault)
    events.fail(KeyError("boom"))
    assert "boom" in str(events.fault)


def test_memory_error_in_thread_is_the_hosts():
    assert outcome_of(ThreadFault("console", MemoryError())) is Outcome.HOST
