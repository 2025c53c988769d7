"""hotplate.events.log: one stream, nobody polls."""

import threading

from hotplate.events.log import EventLog


def test_wait_finds_what_was_there_before():
    events = EventLog()
    events.emit("cfn", "request", server="a", status=200)
    found = events.wait(lambda e: e.server == "a", seconds=0)
    assert found is not None
    assert found.detail == {"status": 200}


def test_wait_from_an_index_ignores_what_was_before():
    events = EventLog()
    events.emit("cfn", "request")
    assert events.wait(lambda e: e.kind == "request", seconds=0, since=len(events)) is None


def test_wait_wakes_on_a_later_event():
    events = EventLog()
    timer = threading.Timer(0.05, events.emit, ("cfn", "signal"))
    timer.start()
    found = events.wait(lambda e: e.kind == "signal", seconds=30)
    timer.join()
    assert found is not None


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
