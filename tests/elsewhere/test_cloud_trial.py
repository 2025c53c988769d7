"""``hotplate test --os-cloud``: the same verdict, and an unchanged project."""

from __future__ import annotations

import copy
import itertools
import json
import signal
import stat
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
import yaml
from cases import GOOD, HANGS, TEMPLATE, ends, expecting, written
from heatclient import exc as heat_errors
from heatclient.v1 import software_deployments
from played_guest import Guest
from ssh_server import ssh_server

from hotplate.elsewhere import following, ways
from hotplate.events.kinds import ServiceRequest
from hotplate.history import FILE, History
from hotplate.testbed import compute
from hotplate.timing.deadline import Deadline, retry

pytestmark = pytest.mark.slow

SECRET = "hush-4711"


def begun(cloud: Any, *words: str) -> Any:
    """Start a run, and return it while its hook is running."""
    cloud.roles["web"] = HANGS
    process = cloud.start(
        *("played.raw", "-t", written(cloud.folder), "--patience", "60", "--limit", "90"), *words
    )
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "hook started" in line:
            return process
    raise AssertionError("".join(seen) + process.stderr.read())


def reached(cloud: Any) -> set[str]:
    stages = cloud.verdict()["stages"]
    return {each["stage"] for each in stages if each["seconds"] is not None}


def test_good_template_passes_and_hides_its_secret(cloud):
    cloud.roles["web"] = GOOD
    ends(cloud.try_it("-P", f"word={SECRET}", "--junit", "junit.xml"), 0)
    verdict = cloud.verdict()
    assert (verdict["outcome"], verdict["outputs"]) == ("passed", {"size": "6"})
    stages = {each["stage"]: each for each in verdict["stages"]}
    assert list(stages)[-1] == "signal accepted"
    assert stages["hook finished"]["evidence"].startswith("console: ")
    assert stages["agent polled"]["implied"]
    assert verdict["facts"]["cloud"] == "hotplate"
    suite = ET.parse(cloud.folder / "junit.xml").getroot()
    assert suite.find(".//failure") is None
    last = cloud.folder / "artifacts" / "last"
    assert "Linux version" in (last / "servers" / "web" / "console.log").read_text()
    assert "signal accepted" in (last / "report.html").read_text()
    assert stat.S_IMODE(last.stat().st_mode) == 0o700
    for path in last.rglob("*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_events_are_asked_for_without_redirects(cloud):
    """A stack's id alone is answered with a redirect to its name and id."""
    cloud.roles["web"] = GOOD
    log = cloud.testbed.cloud.events
    since = len(log)
    ends(cloud.try_it(), 0)
    log.settle()
    asked = [each for event in log.since(since) if (each := ServiceRequest.of(event))]
    assert {each.status for each in asked if each.path.endswith("/events")} == {200}


def test_server_without_deployments_passes_with_invisible_stages(cloud):
    cloud.roles["web"] = Guest(network=False)
    template = copy.deepcopy(TEMPLATE)
    del template["resources"]["deployment"], template["outputs"]
    path = cloud.folder / "template.yaml"
    path.write_text(yaml.safe_dump(template))
    done = ends(cloud.try_it("-t", path), 0)
    assert "network up  (not visible here)" in done.stdout
    stages = {each["stage"]: each for each in cloud.verdict()["stages"]}
    assert [name for name, each in stages.items() if not each["visible"]] == [
        "network up",
        "metadata served",
    ]
    assert stages["booted"]["seconds"] is not None


def test_guest_that_does_not_boot_fails(cloud):
    cloud.roles["web"] = Guest(boots=False)
    done = cloud.run("played.raw", "--patience", "3", "-t", written(cloud.folder))
    ends(done, 1, "FAILED: not reached: booted: ")


def test_failing_hook_is_diagnosed(cloud):
    answer = {"deploy_status_code": 3, "deploy_stderr": "no luck", "deploy_stdout": ""}
    cloud.roles["web"] = Guest(answers={"deployment": answer})
    ends(cloud.try_it(), 1, "no luck")
    verdict = cloud.verdict()
    assert verdict["status"] == "CREATE_FAILED"
    assert verdict["diagnosis"]["fault"] == "hook-failed"
    (written_down,) = (cloud.folder / "artifacts" / "last" / "deployments").iterdir()
    assert "no luck" in written_down.read_text()


def test_unexpected_output_fails(cloud):
    cloud.roles["web"] = GOOD
    expect = expecting(cloud.folder, outputs={"size": "7"})
    ends(cloud.try_it("-t", expect), 1, 'output "size" is "6"; expected "7"')


def test_existing_image_is_not_uploaded(cloud):
    cloud.roles["web"] = GOOD
    done = cloud.run("--os-image", "played", "-t", written(cloud.folder), "--patience", "20")
    ends(done, 0)
    assert (cloud.verdict()["image"], "uploading" in done.stdout) == ("played", False)


def test_nested_servers_are_followed(cloud):
    cloud.roles["web"] = GOOD
    one = copy.deepcopy(TEMPLATE["resources"]["server"])
    one["properties"]["name"] = "one"
    group = {
        "type": "OS::Heat::ResourceGroup",
        "properties": {"count": 1, "resource_def": one},
    }
    ends(cloud.try_it("-t", written(cloud.folder, resources={"more": group})), 0)
    assert {each["name"] for each in cloud.verdict()["servers"]} == {"web", "one"}


def test_terminated_run_is_cleaned_up(cloud):
    with begun(cloud) as process:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, out + err
    assert cloud.verdict()["outcome"] == "interrupted"


def test_second_signal_does_not_stop_the_clean_up(cloud):
    with begun(cloud) as process:
        process.send_signal(signal.SIGINT)
        for line in process.stdout:
            if line.startswith("taking away"):
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 130
    assert cloud.verdict()["outcome"] == "interrupted"


def test_deployment_served_after_its_event_is_followed(cloud, monkeypatch):
    """Heat adds the event of its creation before it creates it (resource.py, _action_recorder)."""
    metadata = software_deployments.SoftwareDeploymentManager.metadata
    before = len(cloud.testbed.events)
    later_calls, served = itertools.count(), threading.Event()

    def late(manager, server_id):
        events = cloud.testbed.events.since(before)
        if not any(each.detail.get("resource") == "deployment" for each in events):
            return []
        if next(later_calls) < 3:
            return []
        served.set()
        return metadata(manager, server_id)

    monkeypatch.setattr(software_deployments.SoftwareDeploymentManager, "metadata", late)
    cloud.roles["web"] = replace(GOOD, on_user_data=lambda _: served.wait(60))
    ends(cloud.try_it(), 0)
    assert reached(cloud) >= {"hook started", "hook finished", "signal accepted"}


def test_events_during_an_outage_are_not_lost(cloud, monkeypatch):
    metadata = software_deployments.SoftwareDeploymentManager.metadata
    heat = cloud.testbed.cloud.heat()

    def unavailable(manager, server_id):
        if any(each.stack_status == "CREATE_IN_PROGRESS" for each in heat.stacks.list()):
            raise heat_errors.HTTPServiceUnavailable
        return metadata(manager, server_id)

    monkeypatch.setattr(software_deployments.SoftwareDeploymentManager, "metadata", unavailable)
    cloud.roles["web"] = GOOD
    ends(cloud.try_it(), 0)
    assert reached(cloud) >= {"hook started", "hook finished", "signal accepted"}


def test_resources_of_a_killed_run_are_cleaned(cloud):
    before = cloud.what_there_is()
    heat = cloud.testbed.cloud.heat()
    # Not one of ours, in spite of its name and tag.
    mine = heat.stacks.create(
        stack_name="hotplate-mine",
        tags="hotplate-test",
        template={"heat_template_version": "2018-08-31"},
    )
    try:
        with begun(cloud) as process:
            others = cloud.run("--clean")
            assert (others.returncode, "it goes on on this host" in others.stdout) == (0, True)
            process.kill()
        left = cloud.what_there_is()
        assert {kind for kind in left if left[kind] != before[kind]} >= {
            "stacks",
            "servers",
            "key pairs",
            "images",
        }
        done = ends(cloud.run("--clean"), 0)
        assert [line.partition(' "')[0] for line in done.stdout.splitlines()] == [
            "removed: stack",
            "removed: key pair",
            "removed: image",
        ]
        after = cloud.what_there_is()
        assert after.pop("stacks") == sorted([*before.pop("stacks"), mine["stack"]["id"]])
        assert after == before
        assert "nothing to take away" in cloud.run("--clean").stdout
    finally:
        heat.stacks.delete(mine["stack"]["id"])
        deadline = Deadline(60, "the stack to be gone")
        retry(lambda _: not cloud.what_there_is()["stacks"], deadline, every=0.5)


def test_clean_removes_kept_resources(cloud):
    cloud.roles["web"] = GOOD
    done = ends(cloud.try_it("--keep"), 0)
    key = cloud.folder / "artifacts" / "last" / "ssh-key"
    assert f"ssh -i {key.resolve()} root@" in done.stdout
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert cloud.run("--clean").returncode == 0


def test_interrupted_run_reports_what_it_keeps(cloud):
    with begun(cloud, "--keep") as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, out + err
    key = cloud.folder / "artifacts" / "last" / "ssh-key"
    assert "(stack, key pair, image)" in out
    assert f"web: ssh -i {key.resolve()} root@" in out
    assert "to take it away: hotplate test --os-cloud hotplate --clean" in out
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert cloud.run("--clean").returncode == 0


def test_run_that_made_nothing_keeps_nothing(cloud):
    done = ends(cloud.try_it("--keep", "--os-network", "nowhere"), 2)
    assert "kept in the cloud" not in done.stdout
    assert not (cloud.folder / "artifacts" / "last" / "ssh-key").exists()


def test_logs_of_a_guest_with_a_floating_address_are_saved(cloud, monkeypatch):
    """Without options of ssh: the address is reached at once."""
    answer = {"deploy_status_code": 3, "deploy_stderr": "no luck", "deploy_stdout": ""}
    cloud.roles["web"] = Guest(answers={"deployment": answer})
    floating = {"addr": "127.0.0.1", "version": 4, "OS-EXT-IPS:type": "floating"}
    listed = following._listed
    monkeypatch.setattr(following, "_listed", lambda shown: [*listed(shown), floating])
    with ssh_server(cloud.keys, root=True) as port:
        monkeypatch.setattr(ways, "SSH_PORT", port)
        ends(cloud.try_it(), 1)
    assert any((cloud.folder / "artifacts" / "last" / "guest" / "web").iterdir())


def test_image_whose_properties_fit_no_host_fails(cloud, monkeypatch):
    """Nova's one message for it (Zed, architecture=aarch64) is that for a cloud without room."""
    message = "No valid host was found. There are not enough hosts available."
    boot = compute.LocalCompute.boot

    def fit(made, spec, services):
        (image,) = [each for each in images.all() if each["id"] == spec.image]
        if image.get("architecture"):
            made._state[spec.id] = ("ERROR", message)
        else:
            boot(made, spec, services)

    images = cloud.testbed.cloud.parts.images
    monkeypatch.setattr(compute.LocalCompute, "boot", fit)
    sentence = 'no host of the cloud "hotplate" takes the image, for its properties architecture='
    ends(cloud.try_it(), 1, sentence)


def test_cloud_without_room_is_a_host_error(cloud, monkeypatch):
    def full(made, spec, _services):
        message = "No valid host was found. There are not enough hosts available."
        made._state[spec.id] = ("ERROR", message)

    monkeypatch.setattr(compute.LocalCompute, "boot", full)
    ends(cloud.try_it(), 3, 'the cloud "hotplate" has no room for a server')


def test_failed_removal_and_usual_upload_time_are_reported(cloud):
    # In one run: what the upload says of earlier ones, and leaves for later ones.
    history, key = History(cloud.folder / "cache" / FILE), "upload-hotplate-played.raw"
    (cloud.folder / "cache" / FILE).unlink(missing_ok=True)
    history.record(key, {"uploaded": 4100.0})
    cloud.roles["web"] = GOOD
    with cloud.testbed.cloud.fault(endpoint="nova", kind="status", status=500, method="DELETE"):
        done = ends(cloud.try_it(), 0)
    left = cloud.verdict()["facts"]["left in the cloud"]
    assert "could not be removed" in left
    assert "to the cloud hotplate, which usually takes 4100 s\n" in done.stdout
    assert history.expected(key)["uploaded"] < 4100
    assert "hotplate test --os-cloud hotplate --clean" in done.stdout
    assert cloud.run("--clean").returncode == 0


def test_cases_make_one_table(cloud):
    cloud.roles["web"] = GOOD
    written(cloud.folder).rename(cloud.folder / "other.yaml")
    words = ("-t", written(cloud.folder), "-t", "other.yaml", "-j", "2", "--json", "all.json")
    ends(cloud.try_it(*words), 0)
    verdicts = json.loads((cloud.folder / "all.json").read_text())
    assert [each["outcome"] for each in verdicts] == ["passed", "passed"]
    assert (cloud.folder / "artifacts" / "matrix.html").exists()
