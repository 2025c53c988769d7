"""A booted guest keeps its secrets private and signals again while Heat is down."""

from __future__ import annotations

import re
import secrets
from collections import Counter

import pytest

from hotplate.events import classify
from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest
from hotplate.testbed.first_boot import boot
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import GuestDeadline

pytestmark = [pytest.mark.boots, pytest.mark.xdist_group("guest")]

RAN = "/var/lib/ran"


@pytest.fixture(scope="module")
def testbed(testbed_of, all_hooks_trixie) -> Testbed:
    return testbed_of(all_hooks_trixie)


@pytest.fixture(scope="module")
def guest(testbed) -> ServerUnderTest:
    return ServerUnderTest(LocalPlatform(testbed, boot(testbed)))


# -- secrets -----------------------------------------------------------------------------------

PUPPET = """\
$told = lookup('password')
file { "${::heat_outputs_path}.password": content => $told }
file { '/etc/app-puppet': content => "password=${::password}\\n", mode => '0600' }
"""
ANSIBLE = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.copy:
        content: "{{ password }}"
        dest: "{{ heat_outputs_path }}.password"
    - ansible.builtin.command:
        argv: ["true", "{{ password }}"]
"""
SCRIPT = """\
#!/bin/sh
printf %s "$password" > "$heat_outputs_path.password"
echo "the password has ${#password} characters"
echo "and is not told" >&2
"""
CFN_INIT = {
    "config": {
        "files": {"/etc/app-cfn": {"content": {"get_input": "password"}, "mode": "000600"}},
        "commands": {
            "01-use": {
                "command": 'test -n "$PASSWORD"',
                "env": {"PASSWORD": {"get_input": "password"}},
            }
        },
    }
}
SALT = """\
{{ opts['heat_outputs_path'] }}.password:
  file.managed:
    - contents: {{ opts['password'] }}
    - contents_newline: false
    - show_changes: false
"""
DEPLOYED = {
    "script": (SCRIPT, {}, ["password"]),
    "puppet": (PUPPET, {"enable_hiera": True}, ["password"]),
    "ansible": (ANSIBLE, {}, ["password"]),
    "salt": (SALT, {}, ["password"]),
    "cfn-init": (CFN_INIT, {}, []),
    # Its files are world-readable, as heat-agents' are; the directory keeps others out.
    "json-file": ({"/etc/private/app.json": {"password": {"get_input": "password"}}}, {}, []),
}

# Commands that search the words in a pattern file, by place.
PLACES = {
    "the journal": "journalctl --no-pager --output export | grep -aoF -f {pattern}",
    "the logs": "grep -rlaF -f {pattern} /var/log /run/log",
    # Files that group or others can read and reach, written since the mark.
    "readable files": (
        r"find / \( -path /proc -o -path /sys -o -path /dev -o -type d ! -perm /011 \) -prune -o "
        r"-type f -perm /044 -newer {pattern} -print0 | xargs -0r grep -lF -f {pattern}"
    ),
    "a stranger's view": (
        "setpriv --reuid nobody --regid nogroup --clear-groups "
        "grep -rlaF -f - /etc /home /opt /run /srv /tmp /var <{pattern}"
    ),
}


def look_for(pattern: str, guest: ServerUnderTest) -> dict[str, str]:
    """Return the matches of the pattern file in each place."""
    return {
        place: guest.run(command.format(pattern=pattern), timeout=600).text
        for place, command in PLACES.items()
    }


def test_password_is_in_no_log_and_no_file_readable_by_others(guest):
    password = f"planted-{secrets.token_hex(12)}"
    control = f"control-{secrets.token_hex(12)}"
    guest.copy_in(f"{password}\n".encode(), "/root/planted", mode=0o600)
    guest.copy_in(f"{control}\n".encode(), "/root/control", mode=0o600)
    guest.run("install -d -m 0700 /etc/private").check()
    deployments = {
        group: guest.deploy(
            group=group,
            config=config,
            options=options,
            outputs=outputs,
            inputs={"password": password},
        )
        for group, (config, options, outputs) in DEPLOYED.items()
    }
    for group, deployment in deployments.items():
        assert deployment.wait().status == "COMPLETE", (group, deployment.outputs)
        if DEPLOYED[group][2]:
            assert deployment.outputs["password"] == password, group

    # Control: each search finds a word that is there.
    guest.run("logger < /root/control; journalctl --sync").check()
    guest.run(f"printf %s {control} | tee /var/lib/open > /var/log/open").check()
    guest.run("chmod 0644 /var/lib/open").check()
    shown = look_for("/root/control", guest)
    assert all(shown.values()), shown
    assert "/var/lib/open" in shown["readable files"].split()
    assert "/var/lib/open" in shown["a stranger's view"].split()
    guest.run(
        "grep -lF -f /root/planted /etc/private/app.json /etc/app-cfn /etc/app-puppet"
    ).check()

    assert look_for("/root/planted", guest) == dict.fromkeys(PLACES, "")
    assert password not in guest.console.text()


# -- faults ------------------------------------------------------------------------------------

LEAVES_A_LINE = f"""\
#!/bin/sh
echo "$label" >> {RAN}
until test -e /run/go-$label; do sleep 0.1; done
printf %s "$label" > "$heat_outputs_path.label"
"""


@pytest.mark.parametrize(
    ("kind", "words"), [("refuse", "connect|refused|reset|closed"), ("status", "500")]
)
def test_refused_signal_is_sent_again_until_accepted(kind, words, guest, testbed):
    since = len(testbed.events)
    line = guest.console.position
    deployment = guest.deploy(
        group="script",
        config=LEAVES_A_LINE,
        inputs={"label": kind},
        outputs=["label"],
        name=f"fault-{kind}",
    )
    event = rf'heat-config: {{}} id=\S+ group=script name="fault-{kind}"'
    deadline = GuestDeadline(300, "the runner's word")
    guest.console.wait_for(event.format("started"), deadline, since=line)
    with testbed.cloud.fault(endpoint="cfn", kind=kind, status=500, server=guest.id):
        # Not before the fault: a script that only sleeps may end sooner.
        guest.run(["touch", f"/run/go-{kind}"]).check()
        guest.console.wait_for(event.format("signal-failed"), deadline, since=line)
    assert deployment.wait().status == "COMPLETE", deployment
    assert deployment.outputs["label"] == kind
    assert guest.run(f"grep -cx {kind} {RAN}").text == "1"

    # By the event, which comes after the line on the console.
    signalled = re.compile(event.format("signalled"))
    assert testbed.events.wait(
        lambda each: signalled.search(classify.console_text(each) or "") is not None,
        seconds=300,
        since=since,
    )
    markers = [
        marker
        for each in testbed.events.since(since)
        if (marker := classify.marker(each)) and marker.name == f"fault-{kind}"
    ]
    reasons = [marker.reason.lower() for marker in markers if marker.event == "signal-failed"]
    assert any(word in reason for reason in reasons for word in words.split("|")), reasons
    counted = Counter(marker.event for marker in markers)
    assert counted.pop("signal-failed") >= 1
    assert counted == Counter(["received", "started", "finished", "signalled"])
