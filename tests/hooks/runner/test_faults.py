"""A control plane with every known misbehaviour: no signal is lost, no hook runs twice."""

import json
import socket
import threading
import time
from email.utils import formatdate

import pytest


@pytest.mark.defect("H2", "N1", "N2")
@pytest.mark.parametrize(
    ("status", "tries"),
    [(s, 1) for s in (301, 400, 401, 403, 409, 413)] + [(s, 3) for s in (429, 500, 502, 503)],
)
def test_refused_signal_is_sent_again_without_running_again(
    guest, heat, cfn, replying, status, tries
):
    replying(status)
    guest.metadata(cfn(), cfn(id="d-2", group="none"))
    assert guest.run().status == 0  # the phase does not fail
    assert (guest.state / ".waiting").exists()
    # Other deployments are served: the second one got its try as well.
    assert sum("resources/d-1" in r.path for r in heat.requests) == tries
    assert any("resources/d-2" in r.path for r in heat.requests)
    assert guest.state_of("d-1") == guest.state_of("d-2") == "finished"
    replying(200)
    heat.requests.clear()
    assert guest.run().status == 0
    assert guest.runs("d-1") == 1
    assert [b["deploy_status_code"] for b in heat.signals] == [0, 1]
    assert not (guest.state / ".waiting").exists()
    heat.requests.clear()
    assert guest.run().status == 0
    assert heat.requests == []


@pytest.mark.defect("N2")
def test_brief_500_is_retried_in_the_same_pass(guest, heat, cfn, replying):
    good = heat.reply
    replying(500)
    failing = heat.reply
    heat.reply = lambda request: (failing if len(heat.requests) < 3 else good)(request)
    assert guest.run(cfn()).status == 0
    assert len(heat.requests) == 3


@pytest.mark.defect("A5")
def test_500_for_many_passes_is_retried_later(guest, heat, cfn, replying):
    replying(500)
    guest.metadata(cfn())
    for number in range(4):
        assert guest.run().status == 0
        assert guest.record("d-1")["heat_config"]["signal"]["tries"] == number + 1
    # Passes may now come faster than tries: the signal waits, and the agent still checks it.  After
    # many tries it waits for half a minute, after four for a few seconds only.
    record = guest.record("d-1")
    record["heat_config"]["signal"].update(tries=10, after=0)
    (guest.state / "d-1.json").write_text(json.dumps(record))
    assert guest.run().status == 0
    assert guest.record("d-1")["heat_config"]["signal"]["tries"] == 11
    count = len(heat.requests)
    assert guest.run().status == 0
    assert len(heat.requests) == count
    assert (guest.state / ".waiting").exists()
    replying(200)
    record = guest.record("d-1")
    record["heat_config"]["signal"]["after"] = 0
    (guest.state / "d-1.json").write_text(json.dumps(record))
    assert guest.run().status == 0
    assert guest.runs("d-1") == 1


@pytest.mark.defect("N5")
def test_refused_connection_is_bounded_and_sent_later(guest, cfn, nobody):
    assert guest.run(cfn(server=nobody), cfn(id="d-2")).status == 0
    assert "cannot be reached: Connection refused" in guest.failures()[0]
    assert guest.state_of("d-2") == "signalled"


#: For servers that hang; others have the whole default on a busy host.
IMPATIENT = "request_timeout = 2\n"
#: Ends the endless loops of a test's server.
OVER = threading.Event()


@pytest.fixture
def ever():
    """Set OVER at the end of the test, so that every hung server ends."""
    OVER.clear()
    yield
    OVER.set()


def _hang(handler):
    OVER.wait()


def _drip(handler):
    while not OVER.wait(0.2):
        handler.wfile.write(b"H")
        handler.wfile.flush()


def _drip_body(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    while not OVER.wait(0.2):
        handler.wfile.write(b" ")
        handler.wfile.flush()


@pytest.mark.defect("H15", "N5")
@pytest.mark.usefixtures("ever")
@pytest.mark.parametrize("act", [_hang, _drip, _drip_body])
def test_host_that_hangs_costs_one_deadline_and_delays_no_other(
    guest, heat, cfn, make_heat, replying, act
):
    guest.config.write_text(IMPATIENT)
    replying(act=act)
    good = make_heat()
    assert guest.run(cfn(), cfn(id="d-2"), cfn(id="d-3", server=good)).status == 0
    assert len(heat.requests) == 1
    assert len(good.requests) == 1
    assert [guest.runs(f"d-{n}") for n in (1, 2, 3)] == [1, 1, 1]
    assert "2 seconds" in guest.failures()[0]
    assert "a moment ago" in guest.failures()[1]


@pytest.mark.defect("N5")
def test_accepting_without_ever_reading_is_a_hang(guest, cfn, heat):
    guest.config.write_text(IMPATIENT)
    listener = socket.create_server(("127.0.0.1", 0))
    guest.run(cfn(url=f"http://127.0.0.1:{listener.getsockname()[1]}/x"))
    assert "2 seconds" in guest.failures()[0]
    listener.close()


def _truncated(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def _cut_header(handler):
    handler.wfile.write(b"HTTP/1.1 20")


def _cut_chunk(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc")


def _nothing(handler):
    return


def _garbage(handler):
    handler.wfile.write(b"\x00\xff SSH-2.0 go away\r\n\r\n")


@pytest.mark.parametrize("act", [_truncated, _cut_header, _cut_chunk, _nothing, _garbage])
def test_malformed_answer_is_not_accepted(guest, heat, cfn, replying, act):
    replying(act=act)
    assert guest.run(cfn()).status == 0
    assert guest.state_of("d-1") == "finished"
    replying(200)
    assert guest.run().status == 0
    assert guest.state_of("d-1") == "signalled"
    assert guest.runs("d-1") == 1


@pytest.mark.parametrize("page", [b"<html>login", b"\n <!DOCTYPE HTML><p>proxy"])
def test_200_with_a_web_page_is_not_heat(guest, heat, cfn, replying, page):
    replying(200, page, {"Content-Type": "text/html"})
    guest.run(cfn())
    assert "web page" in guest.failures()[0]


@pytest.mark.defect("N9")
def test_403_on_an_aged_url_is_explained(guest, cfn, replying):
    replying(403)
    guest.run(cfn(stamp="2026-01-02T03%3A04%3A05Z"))
    assert "signed" in guest.failures()[0]
    assert "auth_ttl" in guest.failures()[0]
    steps = [
        line for line in guest.log("d-1").splitlines() if "started" in line or "may be" in line
    ]
    assert "may be refused" in steps[0], "it is told before the hook runs"


def test_403_on_a_fresh_url_is_not_blamed_on_its_age(guest, cfn, replying):
    replying(403)
    guest.run(cfn())
    assert "ec2tokens" in guest.failures()[0]


def test_403_with_a_wrong_clock_names_the_clock(guest, cfn, replying):
    def act(handler):
        date = formatdate(time.time() + 7200, usegmt=True).encode()
        handler.wfile.write(
            b"HTTP/1.1 403 Forbidden\r\nDate: " + date + b"\r\nContent-Length: 0\r\n\r\n"
        )

    replying(act=act)
    guest.run(cfn())
    assert "clock differs" in guest.failures()[0]


def test_retries_of_many_guests_are_spread(guest, heat, cfn, replying):
    replying(503)
    guest.metadata(cfn())
    gaps = set()
    # Two may be equal by chance, to the millisecond.
    for _ in range(5):
        heat.requests.clear()
        guest.run(wait=True)
        gaps.add(round(heat.requests[1].at - heat.requests[0].at, 3))
        if len(gaps) == 2:
            break
    assert len(gaps) == 2


@pytest.mark.parametrize("also_logs", [False, True])
def test_hook_that_removes_the_state_directory_runs_once(guest, heat, cfn, also_logs):
    """As a script does that prepares a server for a snapshot: no deployment may run again."""
    removed = f"{guest.state} {guest.logs if also_logs else ''}"
    guest.metadata(
        cfn(id="d-1"), cfn(f"rm -rf {removed}\necho gone", group="script", id="d-2"), cfn(id="d-3")
    )
    assert guest.run().status == 0
    assert [guest.state_of(f"d-{n}") for n in (1, 2, 3)] == ["signalled"] * 3
    assert [body["deploy_status_code"] for body in heat.signals] == [0, 0, 0]
    assert heat.signals[1]["deploy_stdout"] == "gone\n"
    assert guest.state.stat().st_mode & 0o777 == 0o700
    assert guest.run().status == 0
    assert len(heat.signals) == 3
    assert (guest.runs("d-1"), guest.runs("d-3")) == (1, 1)
