"""Expectations of an image follow from the template: a good one passes, a broken one fails.

Each row is tried on two played guests, a good one and one that is broken where the template needs
it.  The real Heat decides on the deployments.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from played_guest import Guest, PlayedMachine

from hotplate.cloud.options import CloudOptions
from hotplate.errors import Outcome
from hotplate.guest.base import CommandResult
from hotplate.report import github, html, junit, tap
from hotplate.report.terminal import summary
from hotplate.stacks.template import Template
from hotplate.testbed.server import Server
from hotplate.timing.deadline import DeadlineExceeded
from hotplate.trial.guest_probe import BOOT_END
from hotplate.trial.watch import Watch
from hotplate.verdict.stages import Stage

pytestmark = pytest.mark.slow

KERNEL = "[    0.000000] Linux version 6.1.0-28-cloud-amd64 (debian-kernel)"
NO_AGENT = Guest(agent=False)
NO_METADATA = Guest(metadata=False)


def server(**properties: Any) -> dict[str, Any]:
    given = {"image": "any", "flavor": "any", "user_data_format": "SOFTWARE_CONFIG"} | properties
    return {"type": "OS::Nova::Server", "properties": given}


def config(group: str = "script", **properties: Any) -> dict[str, Any]:
    given = {"group": group, "config": "#!/bin/sh\necho hello\n"} | properties
    return {"type": "OS::Heat::SoftwareConfig", "properties": given}


def deployment(on: str = "server", of: str = "config", **properties: Any) -> dict[str, Any]:
    given = {"config": {"get_resource": of}, "server": {"get_resource": on}} | properties
    return {"type": "OS::Heat::SoftwareDeployment", "properties": given}


def group(*servers: str, **properties: Any) -> dict[str, Any]:
    on = {name: {"get_resource": name} for name in servers}
    given = {"config": {"get_resource": "config"}, "servers": on} | properties
    return {"type": "OS::Heat::SoftwareDeploymentGroup", "properties": given}


def template(resources: Mapping[str, Any], **files: Any) -> Template:
    hot = {"heat_template_version": "2018-08-31"}
    return Template(
        source="a row of the table",
        template={**hot, "resources": dict(resources)},
        files={
            f"file:///{name}.yaml": json.dumps({**hot, "resources": inner})
            for name, inner in files.items()
        },
    )


def with_key(**sections: Any) -> Template:
    """A template with a hidden parameter, "key"."""
    hidden = {"key": {"type": "string", "hidden": True}}
    hot = {"heat_template_version": "2018-08-31", "parameters": hidden, **sections}
    return Template(source="a test", template=hot, parameters={"key": "s3cr3t-key"})


STRUCTURED = {
    "type": "OS::Heat::StructuredConfig",
    "properties": {"group": "json-file", "config": {"/etc/x.json": {"a": 1}}},
}
WAIT = {
    "server": server(
        user_data_format="RAW",
        user_data={
            "str_replace": {
                "template": "#!/bin/sh\nwc_notify --data-binary '{}'\n",
                "params": {"wc_notify": {"get_attr": ["handle", "curl_cli"]}},
            }
        },
    ),
    "handle": {"type": "OS::Heat::WaitConditionHandle"},
    "wait": {
        "type": "OS::Heat::WaitCondition",
        "depends_on": "server",
        "properties": {"handle": {"get_resource": "handle"}, "timeout": 300},
    },
}
NESTED = {"server": server(), "config": config(), "deployment": deployment()}


def signal_wait_condition(wire: Any) -> None:
    """Do the same as ``curl_cli`` of the handle: a POST with a token."""
    words = wire.user_data().decode().replace("'", "").split()
    token = words[words.index("X-Auth-Token:") + 1]
    url = next(word for word in words if word.startswith("http"))
    headers = {"X-Auth-Token": token, "Content-Type": "application/json"}
    assert wire.request("POST", url, headers=headers, data=b"{}").status_code == 200


@dataclass(frozen=True)
class Row:
    """One kind of template.

    :param stage: the one at which a broken image fails it.
    :param broken: how it is broken; by the server's resource where there are several. None where
        another row has the same due stages, or where Heat itself waits for the signal.
    :param named: the words in the last line of the broken run.
    :param deployments: their number, where a guest of the broken image still runs at the end.
    """

    name: str
    template: Template
    stage: Stage
    broken: Guest | Mapping[str, Guest] | None = None
    good: Guest = field(default_factory=Guest)
    named: str = ""
    deployments: int | None = None

    def __str__(self) -> str:
        return self.name


ROWS = (
    Row(
        "a plain server",
        template({"server": server(user_data_format="HEAT_CFNTOOLS")}),
        Stage.METADATA_SERVED,
        NO_METADATA,
    ),
    Row(
        "a plain server that has no address",
        template({"server": server(user_data_format="RAW")}),
        Stage.NETWORK_UP,
        Guest(network=False),
    ),
    Row(
        "user data only",
        template({"server": server(user_data_format="RAW", user_data="#!/bin/sh\ntrue\n")}),
        Stage.METADATA_SERVED,
    ),
    Row(
        "a server that is told where to poll",
        template({"server": server()}),
        Stage.AGENT_POLLED,
        NO_AGENT,
    ),
    Row("a script", template(NESTED), Stage.AGENT_POLLED),
    Row(
        "a script without a signal",
        template(NESTED | {"deployment": deployment(signal_transport="NO_SIGNAL")}),
        Stage.AGENT_POLLED,
        NO_AGENT,
    ),
    Row(
        "a script without a signal that hangs",
        template(NESTED | {"deployment": deployment(signal_transport="NO_SIGNAL")}),
        Stage.HOOK_FINISHED,
        Guest(hangs=("deployment",)),
        deployments=1,
    ),
    Row(
        "one with a signal beside two without",
        template(
            NESTED
            | {
                "quiet": deployment(signal_transport="NO_SIGNAL"),
                "named": deployment(signal_transport="NO_SIGNAL", name="a-name-of-its-own"),
            }
        ),
        Stage.HOOK_FINISHED,
        Guest(hangs=("quiet",)),
        named='deployment "quiet", script',
        deployments=3,
    ),
    Row(
        "a script for the server's end only",
        template(NESTED | {"deployment": deployment(actions=["DELETE"])}),
        Stage.AGENT_POLLED,
        NO_AGENT,
    ),
    Row(
        "a script on one of five servers",
        template(
            {f"helper{number}": server(user_data_format="RAW") for number in range(4)}
            | {"worker": server(), "config": config(), "deployment": deployment("worker")}
        ),
        Stage.AGENT_POLLED,
        {"worker": NO_AGENT},
        named='server "hotplate-worker-',
    ),
    Row(
        "a helper that gets no metadata",
        template(NESTED | {"helper": server(user_data_format="RAW")}),
        Stage.METADATA_SERVED,
        {"helper": NO_METADATA},
        named='server "hotplate-helper-',
        deployments=1,
    ),
    Row(
        "a structured deployment",
        template(
            {
                "server": server(),
                "config": STRUCTURED,
                "deployment": deployment() | {"type": "OS::Heat::StructuredDeployment"},
            }
        ),
        Stage.AGENT_POLLED,
    ),
    Row(
        "structured deployments on two servers without a signal",
        template(
            {
                "one": server(),
                "two": server(),
                "config": STRUCTURED,
                "both": group("one", "two", signal_transport="NO_SIGNAL")
                | {"type": "OS::Heat::StructuredDeploymentGroup"},
            }
        ),
        Stage.AGENT_POLLED,
        {"two": NO_AGENT},
        named='server "hotplate-two-',
        deployments=2,
    ),
    Row(
        "a group on two servers",
        template(
            {"one": server(), "two": server(), "config": config(), "both": group("one", "two")}
        ),
        Stage.HOOK_STARTED,
        {"two": Guest(rejects=("script",))},
        named='server "hotplate-two-',
    ),
    Row(
        "a nested stack",
        template({"inner": {"type": "file:///inner.yaml"}}, inner=NESTED),
        Stage.AGENT_POLLED,
    ),
    Row(
        "a group of nested stacks",
        template(
            {
                "workers": {
                    "type": "OS::Heat::ResourceGroup",
                    "properties": {"count": 2, "resource_def": {"type": "file:///inner.yaml"}},
                }
            },
            inner=NESTED | {"second": deployment()},
        ),
        Stage.HOOK_FINISHED,
        Guest(hangs=("second",)),
        named='.second", script',
        deployments=4,
    ),
    Row(
        "an auto scaling group",
        template(
            {
                "workers": {
                    "type": "OS::Heat::AutoScalingGroup",
                    "properties": {
                        "min_size": 1,
                        "max_size": 2,
                        "desired_capacity": 2,
                        "resource": {"type": "file:///inner.yaml"},
                    },
                }
            },
            inner=NESTED,
        ),
        Stage.AGENT_POLLED,
    ),
    Row(
        "an instance group",
        template(
            {
                "launch": {
                    "type": "AWS::AutoScaling::LaunchConfiguration",
                    "properties": {
                        "ImageId": "any",
                        "InstanceType": "any",
                        "UserData": "#!/bin/sh",
                    },
                },
                "workers": {
                    "type": "OS::Heat::InstanceGroup",
                    "properties": {
                        "AvailabilityZones": ["nova"],
                        "LaunchConfigurationName": {"get_resource": "launch"},
                        "Size": 2,
                    },
                },
            }
        ),
        Stage.METADATA_SERVED,
    ),
    Row(
        "three other signals",
        template(
            {
                "server": server(),
                "config": config(),
                **{
                    word.lower(): deployment(signal_transport=f"{word}_SIGNAL")
                    for word in ("TEMP_URL", "HEAT", "ZAQAR")
                },
            }
        ),
        Stage.HOOK_FINISHED,
        Guest(hangs=("zaqar",)),
        named='deployment "zaqar", script',
        deployments=3,
    ),
    Row(
        "a wait condition",
        template(WAIT),
        Stage.SIGNAL_RECEIVED,
        Guest(),
        good=Guest(on_user_data=signal_wait_condition),
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_good_image_passes(play, row):
    played = play(row.template, row.good)
    verdict = played.verdict
    assert verdict.passed, verdict.last_line()
    assert verdict.status == "CREATE_COMPLETE"
    for each in verdict.servers:
        assert all(stage.seconds is not None for stage in each.stages), each
        assert all(done.missing is None for done in each.deployments), each
    assert row.stage in {stage.stage for each in verdict.servers for stage in each.stages}


@pytest.mark.parametrize("row", [row for row in ROWS if row.broken], ids=str)
def test_broken_image_fails_at_its_stage(play, row):
    def role(name: str) -> Guest:
        if isinstance(row.broken, Guest):
            return row.broken
        return next((how for part, how in row.broken.items() if f"-{part}-" in name), row.good)

    hangs = isinstance(row.broken, Guest) and row.broken.hangs
    # Never reached: Heat may take longer than any patience for the next step.
    played = play(row.template, role, patience=600.0, limit=900.0, deployments=row.deployments)
    verdict = played.verdict
    assert verdict.outcome is (Outcome.GIVEN_UP if hangs else Outcome.FAILED)
    assert verdict.diagnosis.stage == row.stage, verdict.last_line()
    assert row.named in verdict.last_line()


def test_failed_deployment_is_named_and_quoted(play):
    """The runner goes on with the next at once; Heat ends the stack at the first failure."""
    failing = {
        "deploy_status_code": 3,
        "deploy_stderr": "+ migrate --key s3cr3t-key\ncannot reach db: http://x/?Signature=abcdef\n",
        "deploy_stdout": "begin\n",
    }
    resources = {
        "one": server(),
        "two": server(),
        "config": config(),
        "first": deployment("one"),
        "second": deployment("two"),
        "third": deployment("two"),
    }
    wanted = with_key(resources=resources, outputs={"key": {"value": {"get_param": "key"}}})
    played = play(wanted, Guest(answers={"second": failing}, hangs=("first",)))
    verdict = played.verdict
    diagnosis = verdict.diagnosis
    assert (diagnosis.fault, diagnosis.stage) == ("hook-failed", Stage.HOOK_FINISHED), (
        verdict.last_line()
    )
    assert (diagnosis.deployment, diagnosis.group) == ("second", "script")
    assert diagnosis.server.startswith("hotplate-two-")
    assert f'(server "{diagnosis.server}", deployment "second", script)' in verdict.last_line()
    assert "cannot reach db: http://x/?Signature=REDACTED" in diagnosis.seen
    # The third has a file, too, when it answered before the stack's end was seen.
    (file,) = (played.folder / "deployments").rglob("second.txt")
    text = file.read_text()
    assert "+ migrate --key REDACTED" in text
    assert "begin" in text
    assert "abcdef" not in text
    # What a workflow shows to everybody has the reason, and no secret of stdout, output or URL.
    shown = [*github.annotate([verdict]), github.summary([verdict], github.SUMMARY_BYTES)]
    for each in (*shown, tap.to_tap([verdict]).decode()):
        assert "cannot reach db" in each
        assert "s3cr3t" not in each and "abcdef" not in each


def test_outputs_show_no_hidden_parameter(play):
    """Not on the terminal, in JSON, JUnit, TAP or the report; an expectation has them all."""
    secrets = {"key": "s3cr3t-key", "pin": "98765", "pair": "al1ce,b0b", "tree": '{"at": "r00t"}'}
    kinds = ("string", "number", "comma_delimited_list", "json")
    parts = {name: {"get_param": name} for name in secrets}
    joined = {"str_replace": {"template": "mysql -pKEY", "params": {"KEY": {"get_param": "key"}}}}
    seen: dict[str, Any] = {}
    hot = {
        "heat_template_version": "2018-08-31",
        "parameters": {
            name: {"type": kind, "hidden": True} for name, kind in zip(secrets, kinds, strict=True)
        },
        "resources": {"server": server(user_data_format="RAW")},
        "outputs": {
            **{name: {"value": value} for name, value in parts.items()},
            "all": {"value": parts},
            "joined": {"value": joined},
            "open": {"value": "http://10.0.0.5/?Signature=abcdef"},
        },
    }
    wanted = Template(
        source="a test",
        template=hot,
        parameters=secrets,
        expect=lambda outputs: seen.update(outputs) or [],
    )
    played = play(wanted)
    verdict = played.verdict
    assert verdict.passed, verdict.last_line()
    assert (seen["joined"], seen["tree"]) == ("mysql -ps3cr3t-key", {"at": "r00t"})
    assert verdict.outputs["joined"] == "mysql -pREDACTED"
    assert verdict.outputs["tree"] == {"at": "REDACTED"}
    with_outputs = (
        summary(verdict),
        html.report(verdict, played.events),
        json.dumps(verdict.to_json()),
    )
    assert all("http://10.0.0.5/?Signature=REDACTED" in text for text in with_outputs)
    others = (junit.to_xml([verdict]).decode(), tap.to_tap([verdict]).decode())
    for text in (*with_outputs, *others):
        assert not [each for each in ("s3cr3t", "98765", "b0b", "r00t", "abcdef") if each in text]


def test_unmet_expectation_quotes_no_hidden_parameter(play):
    wanted = replace(
        with_key(outputs={"key": {"value": {"get_param": "key"}}}),
        expect=lambda outputs: [f'the output "key" is "{outputs["key"]}"'],
    )
    verdict = play(wanted).verdict
    assert verdict.unmet == ('the output "key" is "REDACTED"',)
    assert "s3cr3t" not in "".join(verdict.reasons)


def test_unresolved_output_is_noticed_with_heats_reason(play):
    broken = {"yaql": {"expression": "$.data.nope()", "data": [{"get_param": "key"}]}}
    wanted = with_key(resources={"one": server()}, outputs={"key": {"value": broken}})
    verdict = play(wanted).verdict
    assert verdict.passed, verdict.last_line()
    (noticed,) = verdict.noticed
    assert noticed.kind == "output-error"
    assert noticed.sentence.startswith('the output "key" has no value')
    assert 'Unknown method "nope"' in noticed.sentence
    assert "s3cr3t" not in noticed.sentence


def test_diagnosis_quotes_no_hidden_parameter(play, monkeypatch):
    """A guest may print one on its console, which the diagnosis quotes."""

    def boot(machine):
        machine.console_says(KERNEL)
        machine.console_says("[    2.1] Kernel panic - not syncing: no disk for s3cr3t-key")

    monkeypatch.setattr(PlayedMachine, "_boot", boot)
    wanted = with_key(resources={"server": server(user_data_format="RAW")})
    verdict = play(wanted).verdict
    assert verdict.diagnosis.fault == "kernel-panic"
    for text in (summary(verdict), junit.to_xml([verdict]).decode(), str(verdict.to_json())):
        assert "no disk for REDACTED" in text
        assert "s3cr3t" not in text


def test_wanted_failure_passes(play):
    # Heat serves them by name; the hanging one is not made before the other one.
    both = NESTED | {
        "deployment": deployment(name="1"),
        "later": {
            "type": "OS::Heat::Value",
            "depends_on": "server",
            "properties": {"value": "a step after the server"},
        },
        "other": deployment(name="2") | {"depends_on": "later"},
    }
    wanted = replace(template(both), expect_status="CREATE_FAILED")
    guest = Guest(answers={"deployment": {"deploy_status_code": 1}}, hangs=("other",))
    assert play(wanted, guest).verdict.passed


def test_each_server_is_shown_with_its_name(play):
    """In the terminal, JUnit, the report and JSON."""
    wanted = template(NESTED | {"helper": server(user_data_format="RAW")})
    played = play(wanted)
    names = [each.name for each in played.verdict.servers]
    assert len(names) == 2
    assert any("reaches no other" in each for each in played.verdict.subject.stand_ins)
    texts = (
        summary(played.verdict),
        junit.to_xml([played.verdict]).decode(),
        html.report(played.verdict, played.events),
        json.dumps(played.verdict.to_json()),
    )
    for text in texts:
        assert all(name in text for name in names)
    # The first one's stages may all be reached before a second one makes the name necessary.
    assert any(line.startswith(f"{names[1]}: ") for line in played.seen)


class Asked:
    """The shell of a healthy guest, and the commands that it was given."""

    def __init__(self):
        self.words = []

    def run(self, command, **_):
        self.words.append(command)
        return CommandResult(str(command), 0, b"", b"")


def test_guest_is_inspected_after_its_boot(play, monkeypatch):
    """cloud-init's last stage may still write the expected files."""
    shell = Asked()
    monkeypatch.setattr(Server, "shell", lambda _, seconds=0: shell)

    def expect(_host):
        shell.words.append("what is expected")
        return ["it is not so"]

    verdict = play(replace(template(NESTED), expect_guest=expect)).verdict
    assert verdict.last_line() == "FAILED: it is not so"
    assert shell.words.count(BOOT_END) == 1
    assert shell.words.index(BOOT_END) < shell.words.index("what is expected")


def test_panicked_guest_is_not_inspected(play, monkeypatch):
    """Heat reports COMPLETE when the guest is switched on; its shell would be awaited in vain."""
    asked = []

    def shell(_server, *, seconds=0.0):
        asked.append(seconds)
        raise DeadlineExceeded("gave up waiting for a root shell")

    def boot(machine):
        machine.console_says("[    2.1] Kernel panic - not syncing: Attempted to kill init!")

    monkeypatch.setattr(Server, "shell", shell)
    monkeypatch.setattr(PlayedMachine, "_boot", boot)
    wanted = replace(template({"server": server()}), expect_guest=lambda _: [])
    verdict = play(wanted, patience=600.0).verdict
    assert verdict.diagnosis.fault == "kernel-panic"
    assert 600.0 not in asked


def test_reboot_during_inspection_is_awaited(play, monkeypatch):
    """power_state of cloud-init reboots some seconds after the boot's end."""
    later = []

    def save_logs(server, *_, events):
        def say(*lines):
            for line in lines:
                events.emit("console", "line", server=server.spec.id, text=line)

        def boot():
            events.emit("machine", "reset", server=server.spec.id, by_guest=True)
            say("Booting from Hard Disk...", KERNEL, "Welcome to Debian GNU/Linux 12 (bookworm)!")
            say("Cloud-init v. 22.4.2 finished at Thu, 01 Jan 2026", "debian login: ")

        say("[  OK  ] Reached target reboot.target - System Reboot.")
        later.append(threading.Timer(1.0, boot))
        later[-1].start()

    monkeypatch.setattr("hotplate.trial.trial.save_logs", save_logs)
    verdict = play(template({"server": server(user_data_format="RAW")})).verdict
    later[0].join()
    assert verdict.passed, verdict.last_line()
    assert [each.kind for each in verdict.noticed] == ["guest-rebooted"]


@pytest.mark.parametrize("lift", [True, False])
def test_lifted_limits_are_reported(play, lift):
    options = CloudOptions(lift_limits=lift)
    verdict = play(template({"server": server()}), options=options).verdict
    assert verdict.passed
    assert ("no limits on the size of requests" in summary(verdict)) == lift
    assert ("no limits on the size of requests" in json.dumps(verdict.to_json())) == lift


def test_template_without_server_does_not_pass(play, monkeypatch):
    """At once: no server is to be waited for until the patience runs out."""
    monkeypatch.delattr(Watch, "_give_up")
    verdict = play(template({"config": config()}), patience=1.0).verdict
    assert not verdict.passed
    seen = "the stack is complete, and there is no server in it"
    assert verdict.last_line().startswith(
        f"FAILED: {seen}. An image is tested by a template with a"
    )
    assert verdict.servers == ()
