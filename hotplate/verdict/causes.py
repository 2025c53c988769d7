"""Rules for causes that the guest's own state shows; they stand before the rules for symptoms.

Each is asked only for the stages that its cause can block: a full disk in a guest without an
agent is not the reason why nothing polls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hotplate.verdict import guest_boot, guest_files, guest_network, guest_units, health
from hotplate.verdict.facts import Facts
from hotplate.verdict.stages import Stage


@dataclass(frozen=True)
class Rule:
    """A fault and its detector.

    :param fault: a stable word for machines, tests and JUnit.
    :param stage: the stage that the diagnosis names, None for the one that is missing.
    :param missing: the first missing stages for which the rule is asked; with ``None`` in it, also
        when all stages were reached and the stack failed all the same.
    :param sees: returns the symptom, as a sentence without its full stop, or "".
    :param advice: where to look, or how to fix it.
    :param in_cloud: the same for a run in a cloud, where ``advice`` applies only to a run on this
        host; "" for the same.
    :param unsent: the same where the deployment sent no output, so that there is no file of it;
        "" for the same.
    :param of_stack: a failure of Heat's own, independent of any server's stage.
    """

    fault: str
    stage: Stage | None
    missing: tuple[Stage | None, ...]
    sees: Callable[[Facts], str]
    advice: str
    in_cloud: str = ""
    unsent: str = ""
    of_stack: bool = False

    def __str__(self) -> str:
        return self.fault


_METADATA = (Stage.BOOTED, Stage.NETWORK_UP, Stage.METADATA_SERVED)
_AGENT = (Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED)
_TO_AGENT = (*_METADATA, *_AGENT)
_RUNS = (Stage.HOOK_STARTED, Stage.HOOK_FINISHED)
_TO_RUNS = (*_AGENT, *_RUNS)
_SIGNALS = (Stage.SIGNAL_RECEIVED, Stage.SIGNAL_ACCEPTED)
_AFTER_BOOT = (*_TO_RUNS, *_SIGNALS)
_ALWAYS = (*_METADATA, *_AFTER_BOOT)

_SPACE = "make the image's root file system larger (DIB_IMAGE_SIZE), or remove what fills it"

CAUSES: tuple[Rule, ...] = (
    # Disks first: any other failure may be a consequence of theirs.
    Rule(
        "disk-full",
        None,
        _ALWAYS,
        guest_files.disk_full,
        _SPACE,
    ),
    Rule(
        "disk-full",
        None,
        _ALWAYS,
        guest_files.disk_said_full,
        _SPACE,
    ),
    Rule(
        "disk-full",
        Stage.HOOK_FINISHED,
        (None,),
        guest_files.disk_full,
        _SPACE,
    ),
    Rule(
        "read-only",
        None,
        _ALWAYS,
        guest_files.read_only,
        "look at its options in /etc/fstab and for errors of the disk in console.log",
    ),
    Rule(
        "not-writable",
        None,
        _AFTER_BOOT,
        guest_files.not_writable,
        "look at its attributes (lsattr -d) and at security modules",
    ),
    # The boot and its units.
    Rule(
        "other-target",
        None,
        _TO_AGENT,
        guest_boot.other_target,
        "make another the default in the image: systemctl set-default multi-user.target",
    ),
    Rule(
        "missing-device",
        Stage.BOOTED,
        # The agent may still be started beside the emergency shell, and finish there.
        (*_ALWAYS, None),
        guest_boot.missing_device,
        "correct the line, or give it the option nofail",
    ),
    Rule(
        "mount-failed",
        Stage.BOOTED,
        (*_ALWAYS, None),
        guest_boot.mount_failed,
        "see the mount's own words in console.log (a wrong type, a damaged file system), and "
        "correct the line, or give it the option nofail",
    ),
    Rule(
        "line-ends",
        None,
        _ALWAYS,
        guest_files.line_ends,
        "write it with the line ends of Linux: sed -i 's/\\r$//'",
    ),
    Rule(
        "line-ends",
        Stage.HOOK_FINISHED,
        (None,),
        guest_files.line_ends,
        "write it with the line ends of Linux: sed -i 's/\\r$//'",
    ),
    Rule(
        "agent-command",
        Stage.AGENT_POLLED,
        _AGENT,
        guest_units.other_command,
        "correct that line, or remove it",
    ),
    Rule(
        "program-missing",
        None,
        _ALWAYS,
        guest_files.program_missing,
        "install it in the image, or rebuild the image with what needs it",
    ),
    Rule(
        "program-missing",
        Stage.HOOK_FINISHED,
        (None,),
        guest_files.hook_program_missing,
        "install it in the image, or rebuild the image with what needs it",
    ),
    Rule(
        "ordering-cycle",
        None,
        _TO_AGENT,
        guest_boot.ordering_cycle,
        "correct After= and Before= of the units in the cycle: systemctl cat",
    ),
    Rule(
        "unit-masked",
        None,
        _TO_AGENT,
        guest_units.unit_masked,
        "unmask it in the image (systemctl unmask)",
    ),
    Rule(
        "agent-disabled",
        Stage.AGENT_POLLED,
        _AGENT,
        guest_units.agent_off,
        "enable it in the image: systemctl unmask, then systemctl enable os-collect-config.service",
    ),
    Rule(
        "cloud-init-off",
        Stage.METADATA_SERVED,
        (*_TO_AGENT,),
        guest_boot.cloud_init_off,
        "remove it: without cloud-init the guest gets no metadata",
    ),
    Rule(
        "unit-disabled",
        None,
        _TO_AGENT,
        guest_units.unit_disabled,
        "enable it in the image (systemctl enable), and look for a preset that disables it",
    ),
    Rule(
        "cloud-config-broken",
        Stage.METADATA_SERVED,
        (*_METADATA, Stage.AGENT_POLLED),
        guest_boot.cloud_config_broken,
        "correct it; cloud-init ignores all of it otherwise",
    ),
    Rule(
        "other-datasource",
        Stage.METADATA_SERVED,
        (*_METADATA, Stage.AGENT_POLLED),
        guest_boot.other_datasource,
        "let it name OpenStack or Ec2 too",
    ),
    Rule(
        "package-broken",
        None,
        _TO_AGENT,
        guest_files.package_broken,
        "finish the upgrade before the image is made: dpkg --configure -a; apt-get -f install",
    ),
    Rule(
        "other-interface",
        Stage.NETWORK_UP,
        (*_METADATA, Stage.AGENT_POLLED),
        guest_network.other_interface,
        "match by Type=ether, or by en* and eth*",
    ),
    Rule(
        "fixed-address",
        Stage.NETWORK_UP,
        (Stage.NETWORK_UP, Stage.METADATA_SERVED, Stage.AGENT_POLLED),
        guest_network.fixed_address,
        "remove it from the image, and let the interface ask for its address by DHCP",
    ),
    Rule(
        "memory-limit",
        None,
        _AFTER_BOOT,
        guest_units.memory_limit,
        "give the agent, and all that hooks run, the memory that they need",
    ),
    Rule(
        "agent-limit",
        None,
        _AFTER_BOOT,
        guest_units.limits,
        "remove that line, or give the agent, and all that hooks run, what they need",
    ),
    Rule(
        "agent-limit",
        Stage.HOOK_FINISHED,
        (None,),
        guest_units.limits,
        "remove that line, or give the agent, and all that hooks run, what they need",
    ),
    Rule(
        "agent-config-broken",
        Stage.AGENT_POLLED,
        _AGENT,
        guest_files.agent_config_broken,
        "correct that file, or what writes it",
    ),
    Rule(
        "boot-waits",
        None,
        _TO_AGENT,
        guest_boot.boot_waits,
        "let that unit end, or give it a limit (TimeoutStartSec=)",
    ),
    # The network.
    Rule(
        "link-down",
        None,
        _ALWAYS,
        guest_network.link_down,
        "look for what switches it off: journalctl -b, and the units of the site",
    ),
    Rule(
        "no-route",
        None,
        (*_AGENT, *_SIGNALS),
        guest_network.no_route,
        "look for what changes the routes and rules: journalctl -b, and the units of the site",
    ),
    Rule(
        "agent-cut-off",
        None,
        (*_AGENT, *_SIGNALS),
        guest_units.no_network_for_agent,
        "remove that line",
    ),
    Rule(
        "proxy",
        None,
        (*_AGENT, *_SIGNALS),
        guest_network.proxy,
        f"except {health.CLOUD} from it with no_proxy",
    ),
    Rule(
        "old-address",
        Stage.AGENT_POLLED,
        _AGENT,
        guest_network.old_address,
        "remove that file before the image is made (heat-agent-forget does)",
    ),
    Rule(
        "wrong-clock",
        None,
        (*_AGENT, *_SIGNALS),
        guest_boot.wrong_clock,
        "look for what sets it, and let the guest use its machine's time",
    ),
    Rule(
        "firewall",
        None,
        (*_AGENT, *_SIGNALS),
        guest_network.firewall,
        f"allow outgoing traffic to {health.CLOUD}",
    ),
    # The agent and the programs that it runs.
    Rule(
        "agent-read-only",
        None,
        _TO_RUNS,
        guest_units.read_only_for_agent,
        "remove that line: the agent and its hooks configure the whole system",
    ),
    Rule(
        "agent-user",
        None,
        _TO_RUNS,
        guest_units.other_user,
        "remove that line",
    ),
    Rule(
        "not-executable",
        None,
        (Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED, *_RUNS),
        guest_files.not_executable,
        "make it executable in the image (mode 0755)",
    ),
    Rule(
        "script-broken",
        None,
        (Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED, *_RUNS),
        guest_files.script_broken,
        "correct it: no phase after its own is run",
    ),
    Rule(
        "template-broken",
        None,
        (Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED, *_RUNS),
        guest_files.template_broken,
        "correct it: os-apply-config writes no file then, and so no deployment reaches a hook",
    ),
    Rule(
        "script-hangs",
        None,
        (Stage.DEPLOYMENT_DELIVERED, Stage.HOOK_STARTED),
        guest_files.script_hangs,
        "see what it waits for; a phase of os-refresh-config runs one script after the other",
    ),
    Rule(
        "no-hooks",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        guest_files.no_hooks,
        "build the image with the element of that group (heat-config-<group>)",
    ),
    Rule(
        "no-exec",
        Stage.HOOK_FINISHED,
        (Stage.HOOK_FINISHED, None),
        guest_files.no_exec,
        "mount it without noexec",
    ),
    Rule(
        "two-agents",
        None,
        _AFTER_BOOT,
        guest_units.two_agents,
        "disable one of them",
    ),
)
