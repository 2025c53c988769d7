"""Rules for causes that the guest's own state shows; they stand before the rules for symptoms.

Each is asked only for the stages that its cause can block: a full disk in a guest without an
agent is not the reason why nothing polls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

from hotplate.verdict import guest_boot, guest_files, guest_network, guest_units, health
from hotplate.verdict.facts import Facts
from hotplate.verdict.stages import Stage


@dataclass(frozen=True)
class Rule:
    """A fault and its detector.

    :param fault: a stable word for machines, tests and JUnit.
    :param sees: returns the symptom, as a sentence without its full stop, or "".
    :param advice: where to look, or how to fix it.
    :param stage: the stage that the diagnosis names, None for the one that is missing.
    :param missing: the first missing stages for which the rule is asked, by default ``stage``; with
        ``None`` in it, also when all stages were reached and the stack failed all the same.
    :param in_cloud: the advice for a run in a cloud, where ``advice`` applies only to a run on this
        host; "" for the same.
    :param unsent: the advice where the deployment sent no output, so that there is no file of it;
        "" for the same.
    :param of_stack: a failure of Heat's own, independent of any server's stage.
    """

    fault: str
    sees: Callable[[Facts], str]
    advice: str
    _: KW_ONLY
    stage: Stage | None = None
    missing: tuple[Stage | None, ...] = ()
    in_cloud: str = ""
    unsent: str = ""
    of_stack: bool = False

    def __str__(self) -> str:
        return self.fault

    def is_asked(self, missing: Stage | None) -> bool:
        """Return True when the rule is asked for a guest with that first missing stage."""
        return missing in (self.missing or (self.stage,))


_METADATA = (Stage.BOOTED, Stage.NETWORK_UP, Stage.METADATA_SERVED)
_AGENT = (Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED)
_TO_AGENT = (*_METADATA, *_AGENT)
_RUNS = (Stage.HOOK_STARTED, Stage.HOOK_FINISHED)
_TO_RUNS = (*_AGENT, *_RUNS)
_SIGNALS = (Stage.SIGNAL_RECEIVED, Stage.SIGNAL_ACCEPTED)
_AFTER_BOOT = (*_TO_RUNS, *_SIGNALS)
_ALWAYS = (*_METADATA, *_AFTER_BOOT)

_SPACE = "make the image's root file system larger (DIB_IMAGE_SIZE), or remove what fills it"


def _also_of_hook(rule: Rule) -> tuple[Rule, Rule]:
    """Return a rule, and the same for a hook that failed when all stages were reached."""
    return rule, replace(rule, stage=Stage.HOOK_FINISHED, missing=(None,))


CAUSES: tuple[Rule, ...] = (
    # Disks first: any other failure may be a consequence of theirs.
    Rule("disk-full", guest_files.disk_full, _SPACE, missing=_ALWAYS),
    Rule("disk-full", guest_files.disk_said_full, _SPACE, missing=_ALWAYS),
    Rule("disk-full", guest_files.disk_full, _SPACE, stage=Stage.HOOK_FINISHED, missing=(None,)),
    Rule(
        "read-only",
        guest_files.read_only,
        "look at its options in /etc/fstab and for errors of the disk in console.log",
        missing=_ALWAYS,
    ),
    Rule(
        "not-writable",
        guest_files.not_writable,
        "look at its attributes (lsattr -d) and at security modules",
        missing=_AFTER_BOOT,
    ),
    Rule(
        "closed-directory",
        guest_files.closed_directory,
        "make its mode 0755 in the image; mktemp -d makes directories with 0700",
        missing=_TO_AGENT,
    ),
    # The boot and its units.
    Rule(
        "other-target",
        guest_boot.other_target,
        "make another the default in the image: systemctl set-default multi-user.target",
        missing=_TO_AGENT,
    ),
    Rule(
        "missing-device",
        guest_boot.missing_device,
        "correct the line, or give it the option nofail",
        stage=Stage.BOOTED,
        # The agent may still be started beside the emergency shell, and finish there.
        missing=(*_ALWAYS, None),
    ),
    Rule(
        "mount-failed",
        guest_boot.mount_failed,
        "see the mount's own words in console.log (a wrong type, a damaged file system), and "
        "correct the line, or give it the option nofail",
        stage=Stage.BOOTED,
        missing=(*_ALWAYS, None),
    ),
    *_also_of_hook(
        Rule(
            "line-ends",
            guest_files.line_ends,
            "write it with the line ends of Linux: sed -i 's/\\r$//'",
            missing=_ALWAYS,
        )
    ),
    Rule(
        "agent-command",
        guest_units.other_command,
        "correct that line, or remove it",
        stage=Stage.AGENT_POLLED,
        missing=_AGENT,
    ),
    Rule(
        "program-missing",
        guest_files.program_missing,
        "install it in the image, or rebuild the image with what needs it",
        missing=_ALWAYS,
    ),
    Rule(
        "program-missing",
        guest_files.hook_program_missing,
        "install it in the image, or rebuild the image with what needs it",
        stage=Stage.HOOK_FINISHED,
        missing=(None,),
    ),
    Rule(
        "ordering-cycle",
        guest_boot.ordering_cycle,
        "correct After= and Before= of the units in the cycle: systemctl cat",
        missing=_TO_AGENT,
    ),
    Rule(
        "unit-masked",
        guest_units.unit_masked,
        "unmask it in the image (systemctl unmask)",
        missing=_TO_AGENT,
    ),
    Rule(
        "agent-disabled",
        guest_units.agent_off,
        "enable it in the image: systemctl unmask, then systemctl enable os-collect-config.service",
        stage=Stage.AGENT_POLLED,
        missing=_AGENT,
    ),
    Rule(
        "agent-skipped",
        guest_units.agent_skipped,
        "correct it, or remove what adds it to the unit: systemctl cat os-collect-config.service",
        stage=Stage.AGENT_POLLED,
        missing=_AGENT,
    ),
    Rule(
        "cloud-init-off",
        guest_boot.cloud_init_off,
        "remove it: without cloud-init the guest gets no metadata",
        stage=Stage.METADATA_SERVED,
        missing=_TO_AGENT,
    ),
    Rule(
        "unit-disabled",
        guest_units.unit_disabled,
        "enable it in the image (systemctl enable), and look for a preset that disables it",
        missing=_TO_AGENT,
    ),
    Rule(
        "cloud-config-broken",
        guest_boot.cloud_config_broken,
        "correct it; cloud-init ignores all of it otherwise",
        stage=Stage.METADATA_SERVED,
        missing=(*_METADATA, Stage.AGENT_POLLED),
    ),
    Rule(
        "other-datasource",
        guest_boot.other_datasource,
        "let it name OpenStack or Ec2 too",
        stage=Stage.METADATA_SERVED,
        missing=(*_METADATA, Stage.AGENT_POLLED),
    ),
    Rule(
        "package-broken",
        guest_files.package_broken,
        "finish the upgrade before the image is made: dpkg --configure -a; apt-get -f install",
        missing=_TO_AGENT,
    ),
    Rule(
        "cloud-init-crashed",
        guest_boot.cloud_init_crashed,
        "put what it misses into the image: cloud-init gets the metadata, and configures the "
        "network",
        missing=_METADATA,
    ),
    Rule(
        "renderer-failed",
        guest_units.renderer_failed,
        "see journalctl -b -u of that unit in the guest (guest/ in the artifacts has the journal)",
        stage=Stage.NETWORK_UP,
        missing=(*_METADATA, Stage.AGENT_POLLED),
    ),
    Rule(
        "other-interface",
        guest_network.other_interface,
        "match by Type=ether, or by en* and eth*",
        stage=Stage.NETWORK_UP,
        missing=(*_METADATA, Stage.AGENT_POLLED),
    ),
    Rule(
        "fixed-address",
        guest_network.fixed_address,
        "remove it from the image, and let the interface ask for its address by DHCP",
        stage=Stage.NETWORK_UP,
        missing=(Stage.NETWORK_UP, Stage.METADATA_SERVED, Stage.AGENT_POLLED),
    ),
    Rule(
        "memory-limit",
        guest_units.memory_limit,
        "give the agent, and all that hooks run, the memory that they need",
        missing=_AFTER_BOOT,
    ),
    *_also_of_hook(
        Rule(
            "agent-limit",
            guest_units.limits,
            "remove that line, or give the agent, and all that hooks run, what they need",
            missing=_AFTER_BOOT,
        )
    ),
    Rule(
        "agent-config-broken",
        guest_files.agent_config_broken,
        "correct that file, or what writes it",
        stage=Stage.AGENT_POLLED,
        missing=_AGENT,
    ),
    Rule(
        "boot-waits",
        guest_boot.boot_waits,
        "let that unit end, or give it a limit (TimeoutStartSec=)",
        missing=(*_TO_AGENT, Stage.USER_DATA_RAN, Stage.CLOUD_INIT_DONE),
    ),
    # The network.
    Rule(
        "link-down",
        guest_network.link_down,
        "look for what should bring it up, and for what switches it off: journalctl -b, and the "
        "units of the site",
        missing=_ALWAYS,
    ),
    Rule(
        "no-route",
        guest_network.no_route,
        "look for what changes the routes and rules: journalctl -b, and the units of the site",
        missing=(*_AGENT, *_SIGNALS),
    ),
    Rule(
        "agent-cut-off",
        guest_units.no_network_for_agent,
        "remove that line",
        missing=(*_AGENT, *_SIGNALS),
    ),
    Rule(
        "proxy",
        guest_network.proxy,
        f"except {health.CLOUD} from it with no_proxy",
        missing=(Stage.METADATA_SERVED, *_AGENT, *_SIGNALS),
    ),
    Rule(
        "old-address",
        guest_network.old_address,
        "remove that file before the image is made (heat-agent-forget does)",
        stage=Stage.AGENT_POLLED,
        missing=_AGENT,
    ),
    Rule(
        "wrong-clock",
        guest_boot.wrong_clock,
        "look for what sets it, and let the guest use its machine's time",
        missing=(*_AGENT, *_SIGNALS),
    ),
    Rule(
        "firewall",
        guest_network.firewall,
        f"allow outgoing traffic to {health.CLOUD}",
        missing=(*_AGENT, *_SIGNALS),
    ),
    # The agent and the programs that it runs.
    Rule(
        "agent-read-only",
        guest_units.read_only_for_agent,
        "remove that line: the agent and its hooks configure the whole system",
        missing=_TO_RUNS,
    ),
    Rule("agent-user", guest_units.other_user, "remove that line", missing=_TO_RUNS),
    Rule(
        "not-executable",
        guest_files.not_executable,
        "make it executable in the image (mode 0755)",
        missing=_TO_RUNS,
    ),
    Rule(
        "script-broken",
        guest_files.script_broken,
        "correct it: no phase after its own is run",
        missing=_TO_RUNS,
    ),
    Rule(
        "template-broken",
        guest_files.template_broken,
        "correct it: os-apply-config writes no file then, and so no deployment reaches a hook",
        missing=_TO_RUNS,
    ),
    Rule(
        "script-hangs",
        guest_files.script_hangs,
        "see what it waits for; a phase of os-refresh-config runs one script after the other",
        missing=(Stage.DEPLOYMENT_DELIVERED, Stage.HOOK_STARTED),
    ),
    Rule(
        "no-hooks",
        guest_files.no_hooks,
        "build the image with the element of that group (heat-config-<group>)",
        stage=Stage.HOOK_STARTED,
    ),
    Rule(
        "no-exec",
        guest_files.no_exec,
        "mount it without noexec",
        stage=Stage.HOOK_FINISHED,
        missing=(Stage.HOOK_FINISHED, None),
    ),
    Rule("two-agents", guest_units.two_agents, "disable one of them", missing=_AFTER_BOOT),
)
