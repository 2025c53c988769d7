"""Problems that did not prevent the end of a run: listed, or a reason not to pass."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.errors import Outcome
from hotplate.report import junit
from hotplate.report.html import report
from hotplate.report.terminal import summary
from hotplate.verdict.noticed import NOTABLE_LINES, NOTABLE_WIDTH, notable, notice


def again(story):
    """Run the hook once more, for the same deployment."""
    story.marker("started")
    story.marker("finished", status=0)


def reset(story):
    story.emit("machine", "reset", reason="guest-reset", by_guest=True)


@pytest.mark.parametrize(
    ("happens", "kind", "sentence"),
    [
        (again, "ran-twice", 'the hook "script" ran 2 times for one deployment'),
        (reset, "guest-reset", "the guest reset by itself once"),
    ],
)
def test_repeated_hook_or_guest_reset_fails_the_run(passed, happens, kind, sentence):
    assert passed.result().passed
    happens(passed)
    verdict = passed.result()
    assert verdict.outcome is Outcome.FAILED
    assert [(each.kind, each.fails) for each in verdict.noticed] == [(kind, True)]
    assert verdict.last_line().startswith(f"FAILED: {sentence}")


LINES = {
    "[FAILED] Failed to start chrony.service - chrony, an NTP client/server.": (
        "failed-unit",
        'the unit "chrony.service" failed to start',
    ),
    "[  OK  ] x\r\n[FAILED] Failed to start LSB: a script.": (
        "failed-unit",
        'the unit "LSB: a script" failed to start',
    ),
    "[   12.2] web systemd[1]: chrony.service: Failed with result 'exit-code'.": (
        "failed-unit",
        'the unit "chrony.service" failed',
    ),
    "[   31.4] Out of memory: Killed process 402 (python3) total-vm:81236kB": (
        "oom-kill",
        'the guest ran out of memory, and its kernel killed "python3"',
    ),
    "[   31.4] Memory cgroup out of memory: Killed process 402 (salt call) total-vm:8kB": (
        "oom-kill",
        'the guest ran out of memory, and its kernel killed "salt call"',
    ),
    # 80 columns; the journal has the whole name.
    "[FAILED] Failed to start cloud-config.serv\u2026tings specified in cloud-config.\r\n"
    "[   12.2] web systemd[1]: cloud-config.service: Failed with result 'exit-code'.": (
        "failed-unit",
        'the unit "cloud-config.service" failed to start',
    ),
    "[   12.2] web systemd[1]: site-very-long-name.service: Failed with result 'exit-code'.\r\n"
    "[FAILED] Failed to start site-very-long-na\u2026ng that the site wants done.": (
        "failed-unit",
        'the unit "site-very-long-name.service" failed',
    ),
    "os-collect-config[411]: /usr/libexec/os-refresh-config/post-configure.d/40-site: line 4: "
    "syntax error near unexpected token `)'": (
        "script-syntax",
        'a phase script has a syntax error: "/usr/libexec/os-refresh-config/post-configure.d/'
        "40-site: line 4: syntax error near unexpected token `)'\"",
    ),
    'x[1]: /usr/libexec/os-refresh-config/configure.d/40-sh: 5: Syntax error: ")" unexpected': (
        "script-syntax",
        'a phase script has a syntax error: "/usr/libexec/os-refresh-config/configure.d/40-sh: 5: '
        'Syntax error: ")" unexpected"',
    ),
    "[ SKIP ] Ordering cycle found, skipping site.service - Site": (
        "ordering-cycle",
        'systemd left out the unit "site.service", which is in an ordering cycle',
    ),
    "[   14.2] traps: wide[431] trap invalid opcode ip:401a2c sp:7ffe error:0 in wide[401000]": (
        "illegal-instruction",
        '"wide" has an instruction that its CPU lacks',
    ),
    "[   14.3] web systemd[1]: wide.service: Main process exited, code=dumped, status=4/ILL": (
        "illegal-instruction",
        '"wide.service" has an instruction that its CPU lacks',
    ),
    "[   14.3] web wide[431]: Fatal glibc error: CPU does not support x86-64-v2": (
        "illegal-instruction",
        '"wide" has an instruction that its CPU lacks',
    ),
    "[   14.3] web wide[431]: /opt/wide: error while loading shared libraries: /opt/libwide.so: "
    "CPU ISA level is lower than required": (
        "illegal-instruction",
        '"wide" has an instruction that its CPU lacks',
    ),
    "[    8.1] cloud-init[301]: Traceback (most recent call last):": (
        "traceback",
        '"cloud-init" ended in a Python traceback',
    ),
    "[    7.2] cloud-init[64]: 01:16:29,701 - handlers[WARNING]: Unhandled non-multipart "
    "(text/x-not-multipart) userdata: 'b'echo hi > /etc/hi'...'": (
        "user-data-ignored",
        'cloud-init ignored user data that begins with neither "#!" nor "#cloud-config"',
    ),
    "[    7.2] cloud-init[64]: 01:16:29,701 - handlers[WARNING]: Unhandled unknown "
    "content-type (text/plain) userdata: 'b'echo hi'...'": (
        "user-data-ignored",
        'cloud-init ignored user data that begins with neither "#!" nor "#cloud-config"',
    ),
    "[    7.2] cloud-init[64]: 2026-11-29 01:19:01,520 - handlers[WARNING]: Unhandled unknown "
    "content-type (text/x-shellscriptt) userdata: 'b'#!/bin/sh'...'": (
        "user-data-ignored",
        'cloud-init ignored a part of the user data, whose type "text/x-shellscriptt" it does not '
        "know",
    ),
    "[    7.2] cloud-init[64]: 01:16:00,325 - util.py[WARNING]: Failed loading yaml blob. "
    'Invalid format at line 6 column 12: "while parsing a flow sequence': (
        "user-data-ignored",
        "cloud-init ignored a cloud-config that it cannot read: Invalid format at line 6 column 12",
    ),
    "[    4.2] heat-config-bootstrap[88]: heat-config-bootstrap: user data was ignored, as there": (
        "user-data-ignored",
        "the user data was not run, as the image has no cloud-init: put it into a deployment",
    ),
    "[   18.1] web os-collect-config[411]: Traceback (most recent call last):": (
        "traceback",
        '"os-collect-config" ended in a Python traceback',
    ),
}


@pytest.mark.parametrize("way", ["console", "journal"])
@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:30])
def test_problem_is_listed_and_fails_under_strict(passed, line, way):
    kind, sentence = LINES[line]
    if way == "console":
        passed.console(*line.split("\r\n"))
        passed.console(*line.split("\r\n"))
    else:
        passed.emit("guest", "journal", lines=notable(line.replace("\r", "")))
    verdict = passed.result()
    assert verdict.passed
    assert [(each.kind, each.sentence) for each in verdict.noticed] == [(kind, sentence)]
    strict = passed.result(strict=True)
    assert strict.outcome is Outcome.FAILED
    assert strict.last_line() == f"FAILED: {sentence}"


SCRIPT = "/var/lib/cloud/instance/scripts/part-001: line"
MODULE = (
    "cc_scripts_user.py[WARNING]: Failed to run module scripts_user (scripts in /var/lib/cloud)"
)
#: In an image of trixie, after cloud-init's last stage.
SSH_KEYGEN = (
    "Generating public/private ed25519 key pair.",
    "Your identification has been saved in /etc/ssh/ssh_host_ed25519_key",
    "Your public key has been saved in /etc/ssh/ssh_host_ed25519_key.pub",
    "The key fingerprint is:",
    "SHA256:1QwmRW1UqWQO53ruqBECt7Abmo1JQoZ972IuSK9GzYs root@web",
    "The key's randomart image is:",
    "+--[ED25519 256]--+",
    "|.oEoo+.oS. .     |",
    "+----[SHA256]-----+",
)
#: As of Heat's loguserdata.py.
LITERAL = (
    r"b'#!/bin/sh -v\napt-get install x\nE: Unable to locate package x\ncp /a \'/b\'\n"
    r"cp: cannot stat \'/a\': No such file or directory\n'"
)


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        ([f"{SCRIPT} 2: yum: command not found"], f"{SCRIPT} 2: yum: command not found"),
        (["Failed to start a.service", "+ true"], "Failed to start a.service"),
        (
            ["/var/lib/heat-cfntools/cfn-userdata", LITERAL, "Provision failed with exit code 5"],
            r"E: Unable to locate package x ... cp: cannot stat \'/a\': No such file or directory",
        ),
        ([], ""),
    ],
)
def test_failed_script_of_user_data_is_quoted(passed, lines, quoted):
    said = [
        "an earlier stage: /x: not found",
        "Cloud-init v. 25.1.4 running 'modules:final' at Sat, 28 Nov 2026 22:46:58 +0000.",
        *lines,
        f"2026-11-28 22:46:59,899 - {MODULE}",
        "Cloud-init v. 25.1.4 finished at Sat, 28 Nov 2026 22:46:59 +0000.",
        *SSH_KEYGEN,
    ]
    passed.console(*(f"[    9.1] cloud-init[64]: {each}" for each in said))
    (seen,) = passed.result().noticed
    sentence = "a script of the user data failed" + (f'; it said "{quoted}"' if quoted else "")
    assert (seen.kind, seen.sentence, seen.wrong) == ("user-data-failed", sentence, True)


@pytest.mark.parametrize("not_a_script", [True, False])
def test_user_data_that_heat_cannot_run_is_noticed_unless_it_is_empty(passed, not_a_script):
    line = "Userdata empty or not executable: [Errno 8] Exec format error: '/var/lib/heat-cfntools'"
    passed.emit("harness", "user-data", not_a_script=not_a_script)
    passed.console(f"[    9.1] cloud-init[64]: {line}")
    noticed = passed.result().noticed
    assert [each.kind for each in noticed] == ["user-data-ignored"] * not_a_script
    assert all("RAW takes cloud-config too" in each.sentence for each in noticed)


def test_flood_after_end_is_listed(passed):
    text = "the guest wrote more than 30000 lines on its console"
    passed.emit("harness", "flood", fault="console-flood", text=text)
    verdict = passed.result()
    assert verdict.passed
    assert [(each.kind, each.sentence) for each in verdict.noticed] == [("console-flood", text)]
    assert passed.result(strict=True).last_line() == f"FAILED: {text}"


def test_refused_and_repeated_signals_are_listed(story):
    story.finished()
    story.signal(500)
    story.signal(500)
    story.signal(200, times=2)
    story.taken()
    story.deployment("COMPLETE")
    verdict = story.result()
    assert verdict.passed
    refused, repeated = verdict.noticed
    assert (refused.kind, repeated.kind) == ("signal-refused", "signal-repeated")
    assert refused.sentence.startswith("a signal was refused with 500, 2 times: /v1/signal/")
    assert repeated.sentence.startswith("a signal was sent 2 times: /v1/signal/")


@pytest.mark.parametrize(
    ("service", "method", "path"),
    [
        (
            *("cfn", "PUT"),
            "/v1/waitcondition/arn%3Aopenstack%3Aheat%3A%3At1%3Astacks%2Fdemo%2F9e1d%2Fresources%2Fh",
        ),
        # heat/engine/resources/openstack/heat/wait_condition_handle.py: each signal_transport.
        ("cfn", "POST", "/v1/signal/arn:openstack:heat::t1:stacks/demo/9e1d/resources/handle"),
        ("heat", "POST", "/v1/t1/stacks/demo/9e1d/resources/handle/signal"),
        ("swift", "PUT", "/v1/AUTH_t1/9e1d/demo-handle-3p6v2ckq7xan"),
        ("zaqar", "POST", "/v2/queues/3f1d/messages"),
    ],
)
def test_wait_condition_may_be_signalled_repeatedly(passed, service, method, path):
    for _ in range(3):
        passed.request(service, method, path, 200)
    assert passed.result(strict=True).passed


def test_unsent_outputs_are_listed(passed):
    (config,) = [each.id for each in passed.tracker.deployments]
    verdict = passed.result(unsent={config: ["result", "url"]})
    assert verdict.passed
    (missing,) = verdict.noticed
    assert missing.kind == "output-missing"
    assert 'did not send its output "result", "url"' in missing.sentence


@pytest.mark.parametrize(
    "line",
    [
        "myapp: a test said: Traceback",
        "[  OK  ] Started chrony.service - chrony, an NTP client/server.",
        "Finished in failure: result",
        # The harness's own unit.
        "[FAILED] Failed to start hotplate-shell.service - /bin/sh -c exec.",
        "[   12.2] web systemd[1]: hotplate-shell.service: Failed with result 'exit-code'.",
        # The journal's own copy of the runner's line on the console.
        '[   40.2] os-collect-config[411]: heat-config: started id=x group=script name="a"',
    ],
)
def test_harmless_line_is_not_listed(passed, line):
    passed.console(line, line)
    assert passed.result().noticed == ()


@pytest.mark.parametrize(("seconds", "seen"), [(631152000, True), (0, False)])
def test_clock_years_behind_is_listed(passed, seconds, seen):
    """From a guest without other problems, where nothing else shows it."""
    clock = seconds or int(time.time())
    passed.probe("clock", f"{clock}\n")
    verdict = passed.result()
    assert verdict.passed
    row = [("wrong-clock", "the guest's clock says 1990-01-01 00:00 UTC")]
    assert [(each.kind, each.sentence) for each in verdict.noticed] == (row if seen else [])


def test_firmware_reset_before_boot_is_not_listed(story):
    story.power()
    reset(story)
    assert notice(story.events, {story.tracker.server: ""}) == ()


def test_server_is_named_when_there_are_several(passed):
    reset(passed)
    server = passed.tracker.server
    (one,) = notice(passed.events, {server: "web", "other": "db"})
    assert str(one) == 'the guest reset by itself once (server "web")'


def test_every_report_shows_notices(passed):
    again(passed)
    passed.console("[FAILED] Failed to start chrony.service - chrony.")
    verdict = passed.result()
    for text in (summary(verdict), report(verdict, passed.events)):
        assert "chrony.service" in text
        assert "ran 2 times" in text
    suite = ET.fromstring(junit.to_xml([verdict])).find("testsuite")
    assert "chrony.service" in suite.findtext("system-out")
    assert suite.find("testcase/failure") is not None
    listed = json.loads(json.dumps(verdict.to_json()))["noticed"]
    assert [each["kind"] for each in listed] == ["ran-twice", "failed-unit"]


#: The last one runs "udevadm control" (netplan.io 1.2).
NOT_IN_CONTAINERS = ("systemd-remount-fs.service", "boot-efi.mount", "netplan-configure.service")
IN_CONTAINERS = ("site.service", "boot-notify.service", "dev-tools.service")


@pytest.mark.parametrize(
    ("machine", "noticed"),
    [("qemu", [*NOT_IN_CONTAINERS, *IN_CONTAINERS]), ("container", [*IN_CONTAINERS])],
)
def test_units_that_no_container_can_have_are_not_noticed(story, machine, noticed):
    story.power()
    story.emit("machine", "power-on", pid=4712, restored=False, machine=machine)
    for unit in (*NOT_IN_CONTAINERS, *IN_CONTAINERS):
        story.console(f"[   12.2] web systemd[1]: {unit}: Failed with result 'exit-code'.")
    seen = notice(story.events, {story.tracker.server: ""})
    assert [each.sentence for each in seen] == [f'the unit "{unit}" failed' for unit in noticed]


def failed_units(story, *rows):
    """Play an answer to the standard checks; return the sentences on failed units."""
    text = "".join(f"{row}\n" for row in ("=== state", "degraded", "=== failed", *rows, "=== end"))
    story.emit("guest", "probe", probe="standard", status=0, text=text)
    seen = notice(story.events, {story.tracker.server: ""})
    return [each.sentence for each in seen if each.kind == "failed-unit"]


def test_disks_of_dib_and_open_iscsi_are_not_noticed_in_a_container(story):
    """dib's element growroot reads the disk of "/"; iscsid needs a netlink socket of the host."""
    story.emit("machine", "power-on", pid=4712, restored=False, machine="container")
    for text in ("Grow root partition", "iSCSI initiator daemon (iscsid)"):
        story.console(f"[FAILED] Failed to start {text}.")
    story.console("[FAILED] Failed to start Login to default iSCSI targets.")
    sentences = failed_units(
        story,
        "growroot.service loaded failed failed Grow root partition",
        "iscsid.service loaded failed failed iSCSI initiator daemon (iscsid)",
    )
    assert sentences == []


def test_failed_unit_is_noticed_once_by_its_name(story):
    """The systemd of bullseye has only the unit's description on the console."""
    story.power()
    story.console("[FAILED] Failed to start Raise network interfaces.")
    row = "networking.service loaded failed failed Raise network interfaces"
    sentences = failed_units(story, row)
    assert sentences == ['the unit "networking.service" failed']


def test_failure_keeps_its_own_last_line(story):
    story.up()
    story.poll(403)
    reset(story)
    verdict = story.result()
    assert verdict.last_line().startswith("FAILED: not reached: deployment delivered")
    assert [each.kind for each in verdict.noticed] == ["guest-reset"]


@given(st.text(st.characters()))
def test_journal_lines_are_bounded(text):
    lines = notable(f"{text}\n" + f"systemd[1]: a.service: Failed with result {text}\n" * 300)
    assert len(lines) <= NOTABLE_LINES
    assert all(len(line) <= NOTABLE_WIDTH for line in lines)
