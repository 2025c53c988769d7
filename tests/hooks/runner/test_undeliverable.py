"""Signals that no server accepts: tried for a while, given up, and kept; no other one waits."""

import json

import pytest


def note(guest, key="d-1"):
    return guest.record(key)["heat_config"]["signal"]


def make_due(guest, key="d-1", **changes):
    """Make the next try due, with *changes* in the note of the earlier tries."""
    record = guest.record(key)
    record["heat_config"]["signal"].update({"after": 0, **changes})
    (guest.state / f"{key}.json").write_text(json.dumps(record))


@pytest.mark.parametrize("status", [404, 410])
def test_final_refusal_is_undeliverable_at_once(guest, heat, cfn, replying, status):
    """Heat answers 404 for a stack or resource that is gone, for ever."""
    replying(status)
    assert guest.run(cfn(), cfn(id="d-2")).status == 0
    assert len(heat.requests) == 2
    assert guest.state_of("d-1") == guest.state_of("d-2") == "undeliverable"
    assert "will not be tried again" in guest.failures()[0]
    assert not (guest.state / ".waiting").exists()
    for _ in range(2):
        done = guest.run()
        assert (done.status, done.log) == (0, "")
    assert len(heat.requests) == 2
    assert guest.runs("d-1") == 1
    assert guest.result("d-1")["deploy_stdout"] == "out"
    assert b"c2VjcmV0" not in guest.text_everywhere()
    assert "undeliverable" in guest.command("status").stdout
    details = guest.command("status", "d-1").stdout
    assert "undeliverable" in details
    assert f"answered {status}" in details
    assert "Signature" not in details


@pytest.mark.parametrize("status", [401, 403])
def test_refusal_is_given_up_after_many_tries_over_a_day(guest, heat, cfn, replying, status):
    replying(status)
    guest.run(cfn())
    assert note(guest)["refusals"] == 1
    make_due(guest, refusals=18, refused=90_000)  # long enough, not often enough
    guest.run()
    assert guest.state_of("d-1") == "finished"
    make_due(guest, refusals=500, refused=86_000)  # often enough, not long enough
    guest.run()
    assert guest.state_of("d-1") == "finished"
    make_due(guest, refused=86_400)
    guest.run()
    assert guest.state_of("d-1") == "undeliverable"
    assert len(heat.requests) == 4


def test_only_refusals_in_a_row_count(guest, heat, cfn, replying):
    replying(403)
    guest.run(cfn())
    make_due(guest, refusals=500, refused=90_000)
    replying(500)
    guest.run()
    assert note(guest)["refusals"] == 0
    replying(403)
    make_due(guest)
    guest.run()
    assert (note(guest)["refusals"], note(guest)["refused"]) == (1, 0)


def test_time_that_the_machine_was_off_does_not_count(guest, heat, cfn, replying):
    """A wrong clock does not count either: time is measured from try to try within a boot."""
    replying(403)
    guest.run(cfn())
    make_due(guest, boot="another", at=-1e6)
    guest.run()
    assert note(guest)["refusals"] == 2
    assert note(guest)["refused"] == 0
    make_due(guest, at=note(guest)["at"] - 100)
    guest.run()
    assert 100 <= note(guest)["refused"] < 1000


@pytest.mark.parametrize("damage", [None, "x", [], {"tries": "x"}, {"refusals": None, "tries": []}])
def test_malformed_note_restarts_the_count_of_tries(guest, heat, cfn, replying, damage):
    replying(503)
    guest.run(cfn())
    record = guest.record("d-1")
    record["heat_config"]["signal"] = damage
    (guest.state / "d-1.json").write_text(json.dumps(record))
    assert guest.run().status == 0
    assert note(guest)["tries"] == 1


def test_changed_address_is_tried_again(guest, heat, cfn, replying):
    replying(404)
    guest.run(cfn())
    replying(200)
    guest.metadata(cfn())  # the same: no try
    guest.run()
    assert len(heat.requests) == 1
    assert guest.run(cfn(url=f"{heat.url}/again")).status == 0
    assert guest.state_of("d-1") == "signalled"
    assert heat.signals[-1]["deploy_stdout"] == "out"
    assert guest.runs("d-1") == 1


@pytest.mark.parametrize("url", ["not a url", "ftp://127.0.0.1/x", "http://[::1/x", "http://a b/"])
def test_malformed_url_is_undeliverable(guest, heat, cfn, url):
    assert guest.run(cfn(url=url)).status == 0
    assert guest.state_of("d-1") == "undeliverable"


def test_resend_sends_all_waiting_signals_and_runs_no_hook(guest, heat, cfn, replying):
    replying(503)
    guest.metadata(cfn(), cfn(id="d-2"))
    guest.run()
    # After so many tries the next one is due in half a minute, and not in a few seconds.
    for key in ("d-1", "d-2"):
        make_due(guest, key, tries=10)
    guest.run()
    heat.requests.clear()
    done = guest.command("resend", "--due")
    assert done.returncode == 1
    assert heat.requests == []  # not due yet
    replying(200)
    guest.metadata(cfn(), cfn(id="d-2"), cfn(id="d-3"))
    assert guest.command("resend").returncode == 0
    assert guest.state_of("d-1") == guest.state_of("d-2") == "signalled"
    assert guest.runs("d-3") == 0
    assert not (guest.state / ".waiting").exists()


def test_resend_sends_a_signal_that_was_given_up(guest, heat, cfn, replying):
    replying(404)
    guest.run(cfn(), cfn(id="d-2"))
    assert guest.command("resend", "d-1").returncode == 1
    assert guest.state_of("d-1") == "undeliverable"
    replying(200)
    assert guest.command("resend", "d-1").returncode == 0
    assert [guest.state_of(f"d-{n}") for n in (1, 2)] == ["signalled", "undeliverable"]
    assert guest.runs("d-1") == 1
    done = guest.command("resend", "d-1")
    assert done.returncode == 1
    assert "it is signalled" in done.stderr
    guest.metadata(cfn())
    done = guest.command("resend", "d-2")
    assert done.returncode == 1
    assert "not among the deployments" in done.stderr
    assert guest.command("resend", "no").returncode == 3


def test_undeliverable_deployment_is_forgotten_with_its_result(guest, heat, cfn, replying):
    replying(404)
    guest.run(cfn(), cfn(id="d-2"))
    guest.config.write_text("forget_after = 0\nkeep_logs = 0\n")
    guest.run(cfn(id="d-2"))
    assert not list(guest.state.glob("d-1*"))
