"""hotplate.events.log: one stream, nobody polls."""

import threading

from hotplate.events.log import EventLog


def test_wait_finds_what_was_there_before():
    events = EventLog()
    events.emit("cfn", "request", server="a", status=200)
    event = events.wait(lambda e: e.server == "a", seconds=0)
    assert event is not None
    assert event.detail == {"status": 200}


def test_wait_from_an_index_ignores_what_was_before():
    events = EventLog()
    events.emit("cfn", "request")
    assert events.wait(lambda e: e.kind == "request", seconds=0, since=len(events)) is None


def test_wait_wakes_on_a_later_event():
    events = EventLog()
    timer = threading.Timer(0.05, events.emit, ("cfn", "signal"))
    timer.start()
    event = events.wait(lambda e: e.kind == "signal", seconds=30)
    timer.join()
    assert event is not None


def test_a_subscriber_hears_until_it_unsubscribes():
    events = EventLog()
    heard = []
    stop = events.subscribe(heard.append)
    events.emit("cfn", "one")
    stop()
    stop()
    events.emit("cfn", "two")
    assert [event.kind for event in heard] == ["one"]


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


def test_of_very_many_the_first_and_the_last_are_kept_under_their_numbers():
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


def test_one_guest_leaves_the_events_of_another_alone():
    events = EventLog(first=2, last=2)
    events.emit("cfn", "request", server="good", number=0)
    for _ in range(100):
        events.emit("cfn", "request", server="bad")
    assert [each.detail for each in events if each.server == "good"] == [{"number": 0}]
