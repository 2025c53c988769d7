"""The artifacts of a test's server, from events without a booted guest."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from hotplate.cloud.options import CloudOptions
from hotplate.heat_releases import installed_version
from hotplate.settings import Settings
from hotplate.trial import evidence
from hotplate.verdict.verdict import EndedTest


@pytest.fixture
def server(passed, tmp_path):
    """A server that is switched off, with the events of the story."""
    spec = SimpleNamespace(id=passed.tracker.server, name="web")
    wiring = SimpleNamespace(name="namespace", reason="the host gives one")
    facts = {"firmware": "uefi", "memory": "512 MiB"}
    machine = SimpleNamespace(wiring=wiring, facts=lambda: facts, running=False)
    return SimpleNamespace(
        spec=spec, machine=machine, directory=tmp_path, restored=True, was_rebooted=False
    )


@pytest.fixture
def testbed(passed):
    maker = SimpleNamespace(facts={"accelerator": "tcg (there is no KVM)"})
    return SimpleNamespace(
        events=passed.events,
        image=SimpleNamespace(path="web.qcow2"),
        cloud=SimpleNamespace(options=CloudOptions(lift_limits=True)),
        settings=Settings(),
        compute=SimpleNamespace(images=SimpleNamespace(by_name={}), maker=lambda _: maker),
    )


def leave(testbed, server):
    verdict = evidence.leave(testbed, server, [], EndedTest("test_a"), since=0)
    left = json.loads((server.directory / "verdict.json").read_text())
    page = (server.directory / "report.html").read_text()
    return verdict, [each["kind"] for each in left["noticed"]], page


def test_notices_are_in_the_report_of_a_test(testbed, server, passed):
    passed.console("[FAILED] Failed to start chrony.service - chrony.")
    verdict, kinds, page = leave(testbed, server)
    assert verdict.passed
    assert kinds == ["failed-unit"]
    assert "chrony.service" in page.partition("<h2>Noticed</h2>")[2].partition("</section>")[0]


@pytest.mark.parametrize(("was_rebooted", "kinds"), [(True, []), (False, ["guest-reset"])])
def test_reboot_by_the_test_is_not_noticed(testbed, server, passed, was_rebooted, kinds):
    passed.emit("machine", "reset", reason="guest-reset", by_guest=True)
    server.was_rebooted = was_rebooted
    assert leave(testbed, server)[1] == kinds


def test_verdict_has_the_servers_environment(testbed, server):
    subject = leave(testbed, server)[0].subject
    assert subject.template == "test_a"
    assert subject.server == "web"
    assert subject.stand_ins == ("no limits on the size of requests",)
    assert subject.facts == {
        "heat": installed_version(),
        "accelerator": "tcg (there is no KVM)",
        "datasource": "openstack",
        "network": "namespace (the host gives one)",
        "firmware": "uefi",
        "memory": "512 MiB",
        "start": "restored from its warm state",
    }
