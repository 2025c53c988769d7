"""Each planted fault is diagnosed from a realistic run of events."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from hotplate.errors import Outcome
from hotplate.events.console_patterns import BY_NAME
from hotplate.events.expected import Transport
from hotplate.report import junit
from hotplate.verdict.diagnosis import diagnose
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.rules import RULES
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import StageTracker

TRACEBACK = """\
Starting os-collect-config
Traceback (most recent call last):
  File "/opt/stack/venvs/os-collect-config/bin/os-collect-config", line 5, in <module>
    from os_collect_config.collect import __main__
ModuleNotFoundError: No module named 'oslo_config'
"""
ADDRESS_LINE = "[   31.2] cloud-init: ens4: 169.254.169.15"
KERNEL_LINE = "[    0.000000] Linux version 6.6.58-0-virt"
EXITED = "deploy_status_code : Deployment exited with non-zero status code: {}"
REFUSED = (
    "[os_collect_config.cfn] ConnectionError HTTPConnectionPool(host='169.254.169.254', port=8000)"
    ": Max retries exceeded with url: /v1/ (Caused by NewConnectionError(': Failed to establish a "
    "new connection: [Errno 111] Connection refused'))"
)


def no_bootable_kernel(s):
    s.power()
    s.console("SeaBIOS (version 1.16.2)", "Booting from Hard Disk...", "No bootable device.")


def kernel_panic(s):
    s.power()
    s.console(
        "[    0.000000] Linux version 6.1.0-28-cloud-amd64",
        "[    2.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100",
    )
    s.emit("machine", "panic", action="pause")


def root_not_found(s):
    s.power()
    s.console(
        "[    0.000000] Linux version 6.1.0-28-cloud-amd64",
        "Gave up waiting for root file system device.  Common problems:",
        "ALERT!  LABEL=cloudimg-rootfs does not exist.  Dropping to a shell!",
        "(initramfs) ",
    )


def no_dhcp(s):
    s.boot()
    s.console(
        "[   ***  ] A start job is running for Wait for Network to be Configured (1min 58s / no)",
        "[FAILED] Failed to start systemd-networkd-wait-online.service - Wait for Network to be "
        "Configured.",
        "ci-info: | eth0 | False | . | . | . | fa:16:3e:00:00:01 |",
        "cloud-init[411]: Used fallback datasource",
        "debian login: ",
    )


def metadata_refused(s):
    s.boot()
    s.console(
        "[   15.1] cloud-init[301]: url_helper.py[WARNING]: Calling "
        "'http://169.254.169.254/openstack' failed [0/-1s]: request error [HTTPConnectionPool("
        "host='169.254.169.254', port=80): [Errno 111] Connection refused]",
    )
    for _ in range(5):
        s.emit("metadata", "refused")
    s.console("Cloud-init v. 22.4.2 finished. Datasource DataSourceNone.  Up 140.2 seconds")


def metadata_404(s):
    s.boot()
    s.metadata(404)
    s.request("metadata", "GET", "/latest/meta-data/", 404)
    s.console("Cloud-init v. 22.4.2 finished. Datasource DataSourceNone.  Up 40.2 seconds")


def no_cfn_init_data(s):
    s.boot()
    s.user_data()
    s.metadata()
    s.console("debian login: ")
    s.agent("[os_collect_config.cfn] No metadata_url configured.")


def no_datasource(s):
    s.boot()
    s.console(
        "ci-info: | eth0 | True | 169.254.169.15 | 255.255.255.0 | global | fa:16:3e:00:00:01 |",
        "Cloud-init v. 22.4.2 finished. Datasource DataSourceNone.  Up 31.02 seconds",
        "debian login: ",
    )


def agent_missing(s):
    s.up()
    s.agent(LoadState="not-found", UnitFileState="", ActiveState="inactive", SubState="dead")


def agent_disabled(s):
    s.up()
    s.agent(UnitFileState="disabled", ActiveState="inactive", SubState="dead")


def agent_crashing(s):
    s.up()
    s.agent(
        TRACEBACK,
        ActiveState="activating",
        SubState="auto-restart",
        Result="exit-code",
        NRestarts="7",
    )


def poll_refused(s):
    s.up()
    s.deployment("IN_PROGRESS")
    s.poll(403, times=6)


def endpoint_down(s):
    s.up()
    s.deployment("IN_PROGRESS")
    for _ in range(4):
        s.emit("cfn", "refused")
    s.agent(REFUSED)


def hook_dropped(s):
    s.delivered()
    reason = (
        'There is no hook for the group "kubelet" on this machine; it is looked for in '
        "/usr/libexec/heat-config/hooks. This group was dropped; use docker-cmd."
    )
    s.marker("rejected", group="kubelet", reason=reason)


def hook_missing(s):
    s.delivered()
    reason = (
        'There is no hook for the group "puppet" on this machine; it is looked for in '
        "/usr/libexec/heat-config/hooks. Install the element heat-config-puppet in the image, or "
        "correct the group."
    )
    s.marker("rejected", group="puppet", reason=reason)
    s.marker("finished", group="puppet", status=1)
    s.signal()
    s.deployment("FAILED", EXITED.format(1))
    s.marker("signalled", group="puppet", status=1)
    s.probe("health", "=== hooks\nscript\n")


def hook_misnamed(s):
    s.delivered()
    s.marker("rejected", reason='There is no hook for the group "script" on this machine; ...')
    s.probe("health", "=== hooks\nScript.py\n")


def hook_not_executable(s):
    s.delivered()
    s.marker("rejected", reason='There is no hook for the group "script" on this machine; ...')
    s.marker("finished", status=1)
    s.signal()
    s.deployment("FAILED", EXITED.format(1))
    s.probe("health", "=== programs\nnot-executable /usr/libexec/heat-config/hooks/script\n")


def hook_hanging(s):
    s.delivered()
    s.marker("started")
    s.poll(times=3)


def hook_killed(s):
    s.failed(137)
    s.stderr = 'The hook "script" gave no answer and was ended by signal 9.\n'


def invalid_json(s):
    s.failed(1)
    s.stderr = 'warming up\nThe hook "script" answered with JSON that is not an object.\n'


def signal_refused(s):
    s.finished()
    s.signal(403, times=4)
    s.marker("signal-failed", reason="the server answered 403")


def signal_lost(s):
    s.delivered()
    s.marker("started")
    s.emit("machine", "link", up=False)
    s.marker("finished", status=0)
    s.marker("signal-failed", reason="no route to the server")


PLANTED = [
    ("no-bootable-kernel", Stage.BOOTED, no_bootable_kernel, "No bootable device"),
    ("kernel-panic", Stage.BOOTED, kernel_panic, "Attempted to kill init"),
    ("root-not-found", Stage.BOOTED, root_not_found, "Gave up waiting"),
    ("no-dhcp", Stage.NETWORK_UP, no_dhcp, "no network device"),
    ("metadata-refused", Stage.METADATA_SERVED, metadata_refused, "Connection refused"),
    ("metadata-404", Stage.METADATA_SERVED, metadata_404, "404 (4 times)"),
    ("no-cfn-init-data", Stage.AGENT_POLLED, no_cfn_init_data, "cfn-init-data"),
    ("no-datasource", Stage.METADATA_SERVED, no_datasource, "DataSourceNone"),
    ("agent-missing", Stage.AGENT_POLLED, agent_missing, "no unit os-collect-config"),
    ("agent-disabled", Stage.AGENT_POLLED, agent_disabled, "not enabled"),
    ("agent-crashing", Stage.AGENT_POLLED, agent_crashing, "No module named 'oslo_config'"),
    ("poll-refused", Stage.DEPLOYMENT_DELIVERED, poll_refused, "403 (6 times)"),
    ("endpoint-down", Stage.AGENT_POLLED, endpoint_down, "cfn"),
    ("hook-missing", Stage.HOOK_STARTED, hook_missing, "puppet"),
    ("hook-misnamed", Stage.HOOK_STARTED, hook_misnamed, 'there is "Script.py" in "/usr/libexec'),
    ("hook-not-executable", Stage.HOOK_STARTED, hook_not_executable, "not executable"),
    ("hook-hanging", Stage.HOOK_FINISHED, hook_hanging, "has not finished"),
    ("hook-killed", Stage.HOOK_FINISHED, hook_killed, "SIGKILL"),
    ("hook-invalid-json", Stage.HOOK_FINISHED, invalid_json, "JSON that is not an object"),
    ("signal-refused", Stage.SIGNAL_ACCEPTED, signal_refused, "403 (4 times)"),
    ("signal-lost", Stage.SIGNAL_RECEIVED, signal_lost, "link is cut"),
]


def status_of(fault: str) -> str:
    return (
        "CREATE_FAILED" if fault in ("hook-killed", "hook-invalid-json") else "CREATE_IN_PROGRESS"
    )


@pytest.mark.parametrize(
    ("fault", "stage", "happens", "seen"), PLANTED, ids=[p[0] for p in PLANTED]
)
def test_planted_fault_is_diagnosed(story, fault, stage, happens, seen):
    happens(story)
    diagnosis = story.diagnosis(status_of(fault))
    assert diagnosis is not None
    assert (diagnosis.fault, diagnosis.stage) == (fault, stage)
    assert seen in diagnosis.seen
    assert diagnosis.advice
    assert diagnosis.evidence


def test_planted_faults_have_rules():
    assert {fault for fault, *_ in PLANTED} <= {rule.fault for rule in RULES}


def without_a_way_in(happens: Callable, story) -> None:
    """Emit the events of a harness that cannot inspect the guest."""
    probe, story.probe = story.probe, lambda *args, **kwargs: None
    happens(story)
    story.probe = probe


@pytest.mark.parametrize("happens", [agent_missing, agent_disabled])
def test_silent_agent_is_unexplained_without_connection(story, happens):
    without_a_way_in(happens, story)
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == ("unknown", Stage.AGENT_POLLED)
    assert "os-collect-config" in diagnosis.advice


def test_own_probes_and_empty_lines_are_no_sign_of_life(story):
    """The last event reported is the guest's own, not the answer to a probe of the harness."""
    story.delivered()
    story.console(" ")
    story.probe("routes", "default via 10.0.0.1")
    story.emit("harness", "waiting", text="waiting for memory")
    seen = story.diagnosis().seen
    assert seen.startswith("nothing for ")
    assert "; the last was console: " in seen
    assert "heat-config: received" in seen


def test_group_that_is_written_unlike_its_hook_is_no_fault_of_the_file_alone(story):
    story.delivered()
    story.marker("rejected", group="Script", reason='There is no hook for the group "Script" ...')
    story.probe("health", "=== hooks\nscript\n")
    diagnosis = story.diagnosis()
    assert diagnosis.fault == "hook-misnamed"
    assert "correct the group in the template" in diagnosis.advice


def test_line_feed_of_an_error_output_does_not_break_the_last_line(story):
    story.finished()
    story.signal()
    story.taken("failed")
    reason = "Error: resources.dep: Deployment to server failed: err : bad\n"
    story.deployment("FAILED", reason)
    text = str(story.diagnosis("CREATE_FAILED", reason))
    assert "\n" not in text
    assert "err : bad. " in text


def test_server_that_heat_does_not_boot_is_named(story):
    kind = "OS::Heat::DeployedServer"
    story.resource("node", kind, "COMPLETE")
    story.deployment("IN_PROGRESS")
    diagnosis = story.diagnosis("CREATE_IN_PROGRESS")
    assert (diagnosis.fault, diagnosis.stage) == ("deployed-server", None)
    assert diagnosis.seen == f'"node" is an {kind}, which Heat does not boot'


HOOK_SET = "CREATE paused until Hook pre-create is cleared"


@pytest.mark.parametrize("happens", ["up", "power", "finished", ""])
def test_hook_of_the_environment_is_named(story, happens):
    if happens:
        getattr(story, happens)()
    story.deployment("COMPLETE", HOOK_SET)
    diagnosis = story.diagnosis("CREATE_IN_PROGRESS")
    assert (diagnosis.fault, diagnosis.stage) == ("paused-by-hook", None)
    assert (
        '"deployment" (OS::Heat::SoftwareDeployment), because of a hook in the ' in diagnosis.seen
    )
    assert diagnosis.seen.endswith(HOOK_SET)


def test_cleared_hook_of_the_environment_is_not_blamed(story):
    story.up()
    story.deployment("COMPLETE", HOOK_SET)
    story.deployment("IN_PROGRESS", "state changed")
    assert story.diagnosis("CREATE_IN_PROGRESS") is None


def test_good_run_has_no_diagnosis(passed):
    assert passed.diagnosis("CREATE_COMPLETE") is None


def test_failing_script_is_reported_as_hook_failure(story):
    story.failed(3)
    diagnosis = story.diagnosis(
        "CREATE_FAILED", EXITED.format(3), "trying\nno such package: apache\n"
    )
    assert (diagnosis.fault, diagnosis.stage) == ("hook-failed", Stage.HOOK_FINISHED)
    assert "status 3" in diagnosis.seen
    assert diagnosis.seen.endswith('it said "no such package: apache"')


@pytest.mark.parametrize(
    ("status", "stderr", "fault", "seen"),
    [
        ("1", "trying\nno such package: apache\n", "hook-failed", 'said "no such package: apache"'),
        ("1", "curl: (6) Could not resolve host: git.example\n", "hook-reaches-out", "git.example"),
        ("-9", "", "hook-killed", 'hook of group "script", or what it ran, was killed (SIGKILL)'),
        ("", "", "stack-failed", "Heat ended the stack as CREATE_FAILED"),
    ],
)
def test_failed_hook_is_named_by_its_signal_without_runner_markers(
    story, status, stderr, fault, seen
):
    """The runner of heat-agents writes nothing on the console."""
    story.up()
    story.signal()
    story.deployment("FAILED", EXITED.format(status))
    diagnosis = diagnose(
        story.events,
        story.tracker,
        stack_status="CREATE_FAILED",
        stack_reason=EXITED.format(status),
        hook_outputs={story.wanted().id: HookOutput(stderr=stderr, status_code=status)},
    )
    assert diagnosis.fault == fault
    assert seen in diagnosis.seen


def test_quoted_sentence_is_followed_by_one_full_stop(story):
    hook_missing(story)
    diagnosis = str(story.diagnosis())
    assert "or correct the group. Build the image for that group too" in diagnosis


def test_first_error_of_script_is_quoted_with_last(story):
    story.failed(127)
    script = "/var/lib/heat-config/heat-config-script/5c9f: line"
    first, last = f"{script} 3: yum: command not found", f"{script} 9: mysql: command not found"
    diagnosis = story.diagnosis("CREATE_FAILED", "it failed", f"{first}\nnothing to do\n{last}\n")
    assert diagnosis.seen.endswith(f'it said "{first} ... {last}"')


REGISTRY = 'Get "https://registry.example/v2/": dial tcp: lookup registry.example on 127.0.0.53:53'
MIRROR = "W: Failed to fetch http://deb.example/x  Temporary failure resolving 'deb.example'"


@pytest.mark.parametrize(
    ("stderr", "quoted"),
    [
        (f"Error response from daemon: {REGISTRY}: server misbehaving\n", "registry.example/v2"),
        ("fatal: unable to access: Could not resolve host: git.example\n", "git.example"),
        (f"{MIRROR}\nE: Unable to locate package nginx\n", 'nginx"; before that, "W: Failed to'),
    ],
)
def test_hook_that_needs_a_host_outside_is_told_that_there_is_none(story, stderr, quoted):
    story.failed(1)
    diagnosis = story.diagnosis("CREATE_FAILED", EXITED.format(1), stderr)
    assert (diagnosis.fault, diagnosis.stage) == ("hook-reaches-out", Stage.HOOK_FINISHED)
    assert quoted in diagnosis.seen
    assert "nothing outside" in diagnosis.advice


@pytest.mark.parametrize(
    ("status", "words"),
    [(1, "what it wrote was not sent to Heat"), (137, "")],
)
def test_advice_names_no_folder_when_nothing_was_sent(story, status, words):
    """With NO_SIGNAL, neither Heat nor the folder of the run has output of the deployment."""
    story.deployed = False
    story.expect(story.wanted(transport=Transport.NONE))
    story.finished(status=status)
    diagnosis = diagnose(story.events, story.tracker, stack_status="CREATE_COMPLETE")
    assert diagnosis.fault == ("hook-failed" if words else "hook-killed")
    assert words in diagnosis.advice[:1].lower() + diagnosis.advice[1:]
    assert "folder deployments" not in diagnosis.advice


@pytest.mark.parametrize(
    "much",
    ["49000000 of 50000000 characters", "3 of 4 characters and 46305695 bytes", "     17 bytes"],
)
def test_cut_output_is_reported_with_place_of_full_one(story, much):
    where = "the whole is on the server in /var/log/heat-config/5c9f.stdout"
    mark = f"\n[... {much} are left out here; {where} ...]\n"
    story.failed(1)
    seen = story.diagnosis("CREATE_FAILED", "it failed", f"x{mark}it broke\n").seen
    assert seen.endswith(f"of its stderr {much.strip()} are left out; {where}")


def test_cut_output_is_noted_beside_unmet_expectation(passed):
    where = "the whole is on the server in /var/log/heat-config/5c9f.stdout"
    mark = f"\n[... 49000000 of 50000000 characters are left out here; {where} ...]\n"
    problem = 'output "stdout" does not contain "ready"'
    verdict = passed.result(outputs={"stdout": f"a{mark}b"})
    assert [each.kind for each in verdict.noticed] == ["output-cut"]
    verdict = passed.result(outputs={"stdout": f"a{mark}b"}, problems=[problem])
    assert verdict.reasons == (
        problem,
        f'of the output "stdout" 49000000 of 50000000 characters are left out; {where}',
    )


def test_reason_of_unresolved_output_is_noted_beside_unmet_expectation(passed):
    errors = {"size": "it has no\nattribute"}
    problem = 'output "size" is null; expected 3'
    verdict = passed.result(outputs={"size": None}, output_errors=errors, problems=[problem])
    sentence = (
        'the output "size" has no value, because Heat could not resolve it: it has no attribute'
    )
    assert verdict.reasons == (problem, sentence)


def test_unit_in_cut_line_is_quoted_in_full(story):
    story.boot()
    story.console(
        "[FAILED] Failed to start site-set\u2026ce - Prepare all that the site wants to have.",
        "[  OK  ] Stopped site-setup.service - Prepare.",
    )
    assert story.diagnosis().seen.endswith('"[FAILED] Failed to start site-setup.service"')


@pytest.mark.parametrize("tag", ["cloud-init[301]: ", "os-collect-config[733]: "])
def test_traceback_is_quoted_by_its_last_line(story, tag):
    story.boot()
    story.console(
        f"[   12.1] {tag}Traceback (most recent call last):",
        "[   12.1] systemd[1]: Started x.service.",
        f'[   12.1] {tag}  File "/usr/bin/x", line 5, in <module>',
        f"[   12.1] {tag}    import yaml",
        f"[   12.2] {tag}ModuleNotFoundError: No module named 'yaml'",
        f"[   12.2] {tag}and so on",
    )
    seen = story.diagnosis().seen
    assert seen.endswith(f"\"{tag}ModuleNotFoundError: No module named 'yaml'\"")


def test_agent_traceback_is_quoted_for_any_exception_name(story):
    story.up()
    log = TRACEBACK.replace("ModuleNotFoundError", "oslo_config.cfg.ConfigFilesNotFound")
    story.agent(log, NRestarts="7", ActiveState="failed")
    assert "ConfigFilesNotFound: No module named" in story.diagnosis().seen


@pytest.mark.parametrize("shown", ["console", "probe", ""])
def test_image_without_cloud_init_gets_no_cloud_init_advice(story, shown):
    story.deployed = False
    story.boot()
    story.user_data("part-001", handles=(f"{story.STACK}/handle",))
    story.wait_condition()
    story.console(ADDRESS_LINE)
    story.metadata()
    if shown == "console":
        story.console("heat-config-bootstrap: the metadata were taken from the service")
    elif shown == "probe":
        story.probe("health", "=== units\nId=cloud-init.service\nLoadState=not-found\n")
    diagnosis = story.diagnosis()
    assert diagnosis.fault == "wait-signal-missing"
    assert ("/var/log/cloud-init-output.log" in diagnosis.advice) is not bool(shown)


def test_hook_stopped_at_timeout_is_named(story):
    story.failed(124)
    sentence = 'The hook "script" was stopped: it ran longer than 5 seconds.'
    diagnosis = story.diagnosis("CREATE_FAILED", EXITED.format(124), sentence)
    assert diagnosis.fault == "hook-hanging"
    assert "5 seconds" in diagnosis.seen


@pytest.mark.parametrize(
    ("reason", "fault"),
    [("lost", "machine-lost"), ("guest-shutdown", "guest-stopped"), ("power-cut", "unknown")],
)
def test_ended_machine_is_lost_only_when_nobody_ended_it(story, reason, fault):
    story.up()
    story.emit("machine", "exit", status=1, reason=reason, message="qemu: aborted")
    diagnosis = story.diagnosis()
    assert diagnosis.fault == fault
    assert diagnosis.stage == Stage.AGENT_POLLED


def test_missing_datasource_is_named_when_agent_gets_metadata(story):
    no_datasource(story)
    story.request("metadata", "GET", "/latest/meta-data/", 200)
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == ("no-datasource", Stage.METADATA_SERVED)


@pytest.mark.parametrize(("full", "seen"), [(True, "host's disk is full"), (False, "bad sector")])
def test_host_disk_error_is_not_the_images_fault(story, full, seen):
    story.up()
    story.emit("machine", "disk-error", full=full, stopped=True, message="bad sector")
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == ("host-disk", Stage.AGENT_POLLED)
    assert seen in diagnosis.seen


def test_disk_error_reported_to_guest_is_not_the_hosts(story):
    story.up()
    story.emit("machine", "disk-error", full=False, stopped=False, message="bad sector")
    assert story.diagnosis().fault != "host-disk"


@pytest.mark.parametrize(
    "line",
    [
        "Fatal glibc error: CPU does not support x86-64-v3",
        "[    1.93] traps: init[1] trap invalid opcode ip:7f3b sp:7ffe error:0 in libc.so.6",
    ],
)
def test_unsupported_cpu_is_named_before_panic(story, line):
    """The harness chose the CPU, so the image has not failed."""
    story.boot()
    story.console(
        line,
        "[    2.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00007f00",
    )
    story.emit("machine", "panic", action="pause")
    verdict = story.result("CREATE_IN_PROGRESS")
    assert (verdict.diagnosis.fault, verdict.outcome) == ("bad-cpu", Outcome.HOST)
    assert line in verdict.diagnosis.seen


def test_missing_delivery_names_the_deployment(story):
    story.up()
    story.deployment("IN_PROGRESS")
    story.poll(times=9)
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == ("not-delivered", Stage.DEPLOYMENT_DELIVERED)
    assert '"deployment"' in diagnosis.seen


def test_endpoint_answering_500_is_down(story):
    story.up()
    story.poll(500, times=3)
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == ("endpoint-down", Stage.DEPLOYMENT_DELIVERED)
    assert "500 (3 times)" in diagnosis.seen


def test_console_pattern_is_used_when_no_rule_matches(story):
    story.delivered()
    story.console("touch: cannot touch '/var/lib/x': Read-only file system")
    diagnosis = story.diagnosis()
    assert diagnosis.stage == Stage.HOOK_STARTED
    assert "the root file system is read-only" in diagnosis.seen


#: As GRUB 2.06 of Debian 12 writes it; its output behind it has no end.
MENU = (
    "GNU GRUB  version 2.06-13+deb12u2",
    "     Use the ^ and v keys to select which entry is highlighted.          ",
    "      Press enter to boot the selected OS, `e' to edit the commands       ",
)


#: The firmware's own shell is not signed either.
SHELL_REFUSED = (
    'BdsDxe: failed to start Boot0002 "EFI Internal Shell" from Fv(7CB8BDC9-F8EB-4F34-AAEA-'
    "3EE4AF6516A1)/FvFile(7C04A583-9E3E-4F1C-AD65-E05268D0B4D1): Security Violation"
)

STOPPED = {
    "silence": ((), "no-bootable-kernel", "nothing at all", ""),
    "panic without root": (
        (
            'VFS: Cannot open root device "vda1" or unknown-block(0,0): error -6',
            "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)",
        ),
        *("root-not-found", "Cannot open root device", ""),
    ),
    # From Alpine 3.20 without its drivers for the disk.
    "initrd": (
        (
            KERNEL_LINE,
            "mount: mounting /dev/vda on /sysroot failed: No such file or directory",
            "Launching initramfs emergency recovery shell.",
            "[    3.2] clocksource: Switched to clocksource tsc",
        ),
        *("root-not-found", "mounting /dev/vda on /sysroot failed", "modules="),
    ),
    "menu": (
        (*MENU, "      before booting or `c' for a command-line.    *Debian GNU/Linux   ", "."),
        *("boot-menu", "waits for a key", "GRUB_TIMEOUT"),
    ),
    # From OVMF 2022.11 with Secure Boot: systemd-boot by itself, shim with it, then GRUB.
    "unsigned loader": (
        (
            'BdsDxe: loading Boot0001 "UEFI Misc Device" from PciRoot(0x0)/Pci(0x1,0x0)',
            'BdsDxe: failed to load Boot0001 "UEFI Misc Device" from PciRoot(0x0)/Pci(0x1,0x0): '
            "Access Denied",
            SHELL_REFUSED,
            "BdsDxe: No bootable option or device was found.",
        ),
        *("unsigned-loader", "Secure Boot refused the boot loader", "shim-signed"),
    ),
    "unsigned GRUB": (
        (
            'BdsDxe: starting Boot0001 "UEFI Misc Device" from PciRoot(0x0)/Pci(0x1,0x0)',
            "\ufffd           Verification failed: (0x1A) Security Violation          \ufffd",
        ),
        *("unsigned-grub", "Secure Boot's shim refused", "EFI/BOOT/grubx64.efi"),
    ),
    "unsigned kernel": (
        (
            "Welcome to GRUB!",
            "error: bad shim signature.",
            "error: you need to load the kernel first.",
        ),
        *("unsigned-kernel", "GRUB refused the kernel", "signed kernel"),
    ),
    "nothing to boot with Secure Boot": (
        (
            'BdsDxe: failed to load Boot0001 "UEFI Misc Device" from PciRoot(0x0)/Pci(0x1,0x0): '
            "Not Found",
            SHELL_REFUSED,
            "BdsDxe: No bootable option or device was found.",
        ),
        *("no-bootable-kernel", "found nothing to boot", "boot loader for this firmware"),
    ),
    "no memory for GRUB": (
        (
            "  Booting `Debian GNU/Linux'",
            "Loading initial ramdisk ...",
            "error: out of memory.",
            "error: you need to load the kernel first.",
            "Press any key to continue...",
        ),
        *("too-little-memory", "out of memory", "--memory"),
    ),
}


@pytest.mark.parametrize("where", STOPPED)
def test_stop_before_the_boot_is_named(story, where):
    lines, fault, seen, advice = STOPPED[where]
    story.power()
    story.console(*lines)
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == (fault, Stage.BOOTED)
    assert seen in diagnosis.seen
    assert advice in diagnosis.advice


@pytest.mark.parametrize(
    "later",
    [
        "  Booting `Debian GNU/Linux'",
        "      before booting or `c' for a command-line.  *Debian GNU/Linux    The highlighted "
        "entry will be executed automatically in 30s.",
    ],
)
def test_menu_that_booted_or_counts_down_is_not_blamed(story, later):
    story.power()
    story.console(*MENU, later)
    assert story.diagnosis().fault != "boot-menu"


def test_console_device_is_never_the_cause(story):
    """Recorded on an overloaded host: the console works, so its device exists."""
    story.boot()
    story.console(
        "[ ***  ] (4 of 7) Job dev-ttyS0.device/start running (1min 21s / 1min 30s)",
        "[ TIME ] Timed out waiting for device dev-ttyS0.device - /dev/ttyS0.",
        "[DEPEND] Dependency failed for serial-getty@ttyS0.service - Serial Getty on ttyS0.",
    )
    diagnosis = story.diagnosis()
    assert "the guest is so slow that" in diagnosis.seen
    assert "less beside it on this host" in diagnosis.advice


def test_stack_failure_before_any_machine_is_heats(story):
    story.request("heat", "POST", "/v1/p/stacks", 201, side="host")
    reason = "Resource CREATE failed: no such flavor"
    story.resource("demo", "OS::Heat::Stack", "FAILED", reason)
    diagnosis = story.diagnosis("CREATE_FAILED", reason)
    assert (diagnosis.fault, diagnosis.stage) == ("stack-failed", Stage.BOOTED)
    assert "no such flavor" in diagnosis.seen


def test_failed_stack_without_a_reason_or_an_event_is_heats(story):
    diagnosis = story.diagnosis("CREATE_FAILED", "")
    assert diagnosis.fault == "stack-failed"
    assert "it gave no reason" in diagnosis.seen


PORTS = "Conflict: resources.floating: Multiple port matches found for name ''"


def test_stack_failure_during_boot_is_heats(story):
    """A floating IP was associated while the guest had just begun to boot."""
    story.power()
    story.console(KERNEL_LINE, "[    0.102] x86/fpu: x87 FPU will use FXSAVE")
    story.resource("floating", "OS::Neutron::FloatingIPAssociation", "FAILED", PORTS)
    story.resource("deployment", "OS::Heat::SoftwareDeployment", "FAILED", "CREATE aborted")
    verdict = story.result("CREATE_FAILED", reason=f"Resource CREATE failed: {PORTS}")
    assert (verdict.diagnosis.fault, verdict.diagnosis.stage) == ("stack-failed", None)
    assert verdict.last_line() == (
        'FAILED: Heat failed the resource "floating" (OS::Neutron::FloatingIPAssociation): '
        f"{PORTS}. Correct that resource in the template; this says nothing about the image"
    )
    assert verdict.to_json()["diagnosis"]["stage"] is None
    failures = ET.fromstring(junit.to_xml([verdict])).iter("failure")
    assert [each.get("type") for each in failures] == ["stack-failed"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("OS::Heat::SoftwareDeployment", EXITED.format(1)),
        ("OS::Heat::WaitCondition", "WaitConditionTimeout: resources.wait: 0 of 1 received"),
        ("OS::Nova::Server", "CREATE aborted (Task create from Server timed out)"),
    ],
)
def test_resource_depending_on_guest_is_no_failure_of_heats(story, kind, reason):
    story.up()
    story.resource("x", kind, "FAILED", reason)
    assert story.diagnosis("CREATE_FAILED", reason).stage == Stage.AGENT_POLLED


def test_panic_is_blamed_before_heats_failure(story):
    kernel_panic(story)
    story.resource("floating", "OS::Neutron::FloatingIPAssociation", "FAILED", PORTS)
    assert story.diagnosis("CREATE_FAILED", PORTS).fault == "kernel-panic"


def test_tracker_without_server_has_no_marks(story):
    tracker = StageTracker(story.events, "")
    story.request("heat", "GET", "/v1/p/stacks/demo", 200, side="host", server="")
    assert tracker.marks() == []


@pytest.mark.parametrize(("status", "fault"), [(403, "poll-refused"), (503, "endpoint-down")])
def test_earlier_good_polls_do_not_hide_breakage(story, status, fault):
    story.up()
    story.poll(times=40)
    story.deployment("IN_PROGRESS")
    story.poll(status, times=4)
    diagnosis = story.diagnosis()
    assert diagnosis.fault == fault
    assert f"{status} (4 times)" in diagnosis.seen


@pytest.mark.parametrize("status", [403, 503])
def test_single_bad_answer_among_good_ones_is_no_cause(story, status):
    story.up()
    story.deployment("IN_PROGRESS")
    story.poll(times=3)
    story.poll(status, times=2)
    assert story.diagnosis().fault == "not-delivered"
    story.poll(times=3)
    assert story.diagnosis().fault == "not-delivered"


@pytest.mark.parametrize("happens", [agent_missing, agent_disabled, agent_crashing])
def test_agent_stopped_after_polling_is_named(story, happens):
    story.power()
    story.poll(times=5)
    story.deployment("IN_PROGRESS")
    happens(story)
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == (
        happens.__name__.replace("_", "-"),
        Stage.AGENT_POLLED,
    )


def test_restored_guest_has_had_its_metadata(story):
    story.emit("machine", "power-on", pid=1, restored=True)
    story.expect(story.wanted())
    assert story.tracker.missing() == Stage.AGENT_POLLED
    story.agent(UnitFileState="disabled", ActiveState="inactive")
    assert story.diagnosis().fault == "agent-disabled"


@pytest.mark.parametrize(
    "fault", ["console-flood", "connection-flood", "request-flood", "storage-flood"]
)
def test_exceeded_limit_is_the_diagnosis(story, fault):
    story.up()
    story.emit("harness", "flood", fault=fault, text="it did it again")
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.seen) == (fault, "it did it again")


def test_console_only_diagnosis_has_one_advice(story):
    story.boot()
    story.console("[FAILED] Failed to start site.service - Something of the site.")
    diagnosis = story.diagnosis()
    pattern = BY_NAME["unit-failed"]
    assert diagnosis.fault == "unknown"
    assert pattern.advice not in diagnosis.seen
    assert diagnosis.advice == pattern.advice


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        ("AttributeError: module 'requests' has no attribute 'Response'", "agent-crashing"),
        ("os-collect-config: Deactivated successfully.", "unknown"),
    ],
)
def test_single_agent_failure_is_judged_by_its_log(story, log, fault):
    story.up()
    story.agent(log=log, NRestarts="1")
    assert story.diagnosis().fault == fault


def test_missing_hook_advice_has_no_placeholder(story):
    hook_dropped(story)
    diagnosis = str(story.diagnosis())
    assert story.diagnosis().fault == "hook-dropped"
    assert "use docker-cmd" in diagnosis
    assert "heat-config-<" not in diagnosis
    assert "heat-config-kubelet" not in diagnosis


def test_guest_text_is_made_printable(story):
    story.up()
    story.emit("machine", "disk-error", full=False, stopped=True, message="\x1b]0;x\x07\u202ebad")
    assert str(story.diagnosis()).isprintable()


def test_repeated_failure_is_named(story):
    """Without cloud-init: the bootstrap fails, and systemd starts it again every few seconds."""
    story.boot()
    for number in range(12):
        story.console(
            f"[{20 + 5 * number:5}.1] heat-config-bootstrap[{300 + number}]: "
            "heat-config-bootstrap: no metadata: the service refused the connection",
            "[FAILED] Failed to start heat-config-bootstrap.service - Heat's files.",
            "         Starting heat-config-bootstrap.service - Heat's files...",
        )
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == ("fails-again", Stage.NETWORK_UP)
    assert diagnosis.seen == (
        'the same failed 12 times: "heat-config-bootstrap: heat-config-bootstrap: no metadata: '
        'the service refused the connection"'
    )
