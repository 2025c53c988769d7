"""The table of faults, with the detector and the advice of each.

The first rule that matches is the diagnosis, so certain rules stand before likely ones, and
causes in a guest's own state before their symptoms from outside.
"""

from __future__ import annotations

from hotplate.events import console_patterns
from hotplate.verdict import detectors, guest_boot
from hotplate.verdict.causes import CAUSES, Rule
from hotplate.verdict.stages import ORDER, Stage

_BEFORE_METADATA = (Stage.NETWORK_UP, Stage.METADATA_SERVED)


_EVERY: tuple[Stage | None, ...] = ORDER
_POLL = (Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED)
# An agent may also stop after it has polled.
_AGENT = (Stage.METADATA_SERVED, Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED)
_KEPT = "was not sent to Heat: it is in the guest, in /var/log/heat-config"
_OUTCOME: tuple[Stage | None, ...] = (Stage.HOOK_FINISHED, Stage.SIGNAL_RECEIVED, None)

RULES: tuple[Rule, ...] = (
    # There is no guest.
    Rule(
        "stack-failed",
        Stage.BOOTED,
        (Stage.BOOTED,),
        detectors.never_started,
        "look at the stack's events in the timeline, and at Heat's log in the artifacts",
        in_cloud="look at the stack's events in the timeline, and at the server's state in the "
        "cloud",
    ),
    Rule(
        "stack-failed",
        None,
        (*_EVERY, None),
        detectors.resource_failed,
        "correct that resource in the template; this says nothing about the image",
        of_stack=True,
    ),
    # The host is at fault.
    Rule(
        "host-disk",
        None,
        (*_EVERY, None),
        detectors.disk_of_host,
        "free some space where the artifacts are (df -h), or name another folder with --artifacts; "
        "this says nothing about the image",
        in_cloud="ask who runs the cloud about its storage; this says nothing about the image",
    ),
    # The guest floods, see "What a guest can do" in docs/testing.rst.
    Rule(
        "console-flood",
        None,
        (*_EVERY, None),
        detectors.flood("console-flood"),
        "see console.log for what writes without end: a driver that reports an error again and "
        "again, a service that is started again and again",
    ),
    Rule(
        "connection-flood",
        None,
        (*_EVERY, None),
        detectors.flood("connection-flood"),
        "look for a program in the guest that opens connections and does not close them",
    ),
    Rule(
        "request-flood",
        None,
        (*_EVERY, None),
        detectors.flood("request-flood"),
        "see requests.jsonl for what is asked again and again without a pause",
        in_cloud="look for a program in the guest that asks again and again without a pause",
    ),
    Rule(
        "storage-flood",
        None,
        (*_EVERY, None),
        detectors.flood("storage-flood"),
        "see requests.jsonl for what is written to Swift or Zaqar again and again",
        in_cloud="look for a program in the guest that writes to Swift or Zaqar again and again",
    ),
    # The guest does not boot, or stopped.
    Rule(
        "root-not-found",
        Stage.BOOTED,
        (Stage.BOOTED,),
        detectors.console_finding("initramfs-shell", "no-root-filesystem", "root-waited-for"),
        "compare root= on the kernel command line with the label or UUID of the image's root file "
        "system; check that the initrd has the disk's driver, and loads it (Alpine's loads those "
        "of modules= on that command line)",
    ),
    Rule(
        "emulation-failed",
        None,
        _EVERY,
        detectors.emulation_failed,
        "QEMU before 8.1 emulates several processors with such a fault, rarely: try again, or give "
        "the guest one processor (--cpus 1); this says nothing about the image",
        in_cloud="try again; this says nothing about the image",
    ),
    Rule(
        "host-overloaded",
        None,
        _EVERY,
        detectors.console_finding("timer-too-late"),
        "try again, with less beside it on this host: QEMU's timer had no processor to tick on; "
        "this says nothing about the image",
        in_cloud="try again, or another availability zone: this says nothing about the image",
    ),
    # An init that its CPU cannot run takes the kernel with it.
    Rule(
        "bad-cpu",
        Stage.BOOTED,
        _EVERY,
        detectors.console_finding("bad-cpu"),
        "try it on a host with KVM, whose guests have the host's own CPU (hotplate doctor), or "
        "build the image for x86-64-v1; this says nothing of the image on a newer CPU",
        in_cloud="boot with a flavor whose hosts have a newer CPU, or build the image for "
        "x86-64-v1",
    ),
    Rule(
        "kernel-panic",
        Stage.BOOTED,
        _EVERY,
        detectors.panic,
        "read console.log above the panic; try more memory (--memory)",
        in_cloud="read console.log above the panic; try a flavor with more memory",
    ),
    Rule(
        "boot-loop",
        Stage.BOOTED,
        (Stage.BOOTED,),
        detectors.boot_loop,
        "a kernel that resets the machine at once often needs more memory (--memory), or a newer "
        "CPU, as guests have with KVM (hotplate doctor); see console.log and the screenshot",
        in_cloud="a kernel that resets the machine at once often needs more memory: try a larger "
        "flavor, and see console.log",
    ),
    Rule(
        "boot-menu",
        Stage.BOOTED,
        (Stage.BOOTED,),
        guest_boot.menu_waits,
        console_patterns.BY_NAME["grub-menu"].advice,
    ),
    Rule(
        "too-little-memory",
        Stage.BOOTED,
        (Stage.BOOTED,),
        detectors.console_finding("grub-out-of-memory"),
        console_patterns.BY_NAME["grub-out-of-memory"].advice,
        in_cloud=console_patterns.BY_NAME["grub-out-of-memory"].in_cloud,
    ),
    # The silence of a lost machine proves nothing.
    Rule(
        "machine-lost",
        None,
        _EVERY,
        detectors.machine_gone,
        "see what QEMU wrote and the end of console.log; this says nothing about the image",
        in_cloud="see the end of console.log and the server's state in the cloud; this says "
        "nothing about the image",
    ),
    Rule(
        "no-bootable-kernel",
        Stage.BOOTED,
        (Stage.BOOTED,),
        detectors.nothing_booted,
        "look at the screenshot; check that the image has a kernel and a boot loader for this "
        "firmware, and that the kernel's command line has console=ttyS0",
        in_cloud="check that the image has a kernel and a boot loader for the cloud's firmware, "
        "and that the kernel's command line has console=ttyS0",
    ),
    Rule(
        "guest-stopped",
        None,
        _EVERY,
        detectors.guest_stopped,
        "see the end of console.log for who asked for it",
    ),
    Rule(
        "not-back",
        Stage.BOOTED,
        (Stage.BOOTED,),
        detectors.not_back,
        "see the end of console.log, and what asked for the reboot",
    ),
    # Faults inside a guest that could be examined.
    *CAUSES,
    # The guest boots, and gets no metadata.
    Rule(
        "no-dhcp",
        Stage.NETWORK_UP,
        _BEFORE_METADATA,
        detectors.no_dhcp,
        "check that a network renderer is installed and enabled in the image and asks for DHCP "
        "(systemd-networkd with a .network file for en* and eth*)",
    ),
    Rule(
        "network-silent",
        Stage.NETWORK_UP,
        (Stage.NETWORK_UP,),
        detectors.network_silent,
        "look at what is to bring the network up when the boot goes on, in the image: systemd-"
        "networkd, ifupdown or NetworkManager, enabled and for these devices; a lease of "
        "cloud-init's first stage ends with that",
    ),
    Rule(
        "metadata-404",
        Stage.METADATA_SERVED,
        _BEFORE_METADATA,
        detectors.metadata_errors,
        "see requests.jsonl for the paths that the guest asked for",
        in_cloud="see /var/log/cloud-init.log in the guest for the paths that it asked for",
    ),
    Rule(
        "metadata-refused",
        Stage.METADATA_SERVED,
        _BEFORE_METADATA,
        detectors.metadata_refused,
        "check the guest's routes and firewall, and the harness's wiring in verdict.json",
        in_cloud="check the guest's routes and firewall, and the cloud's security groups",
    ),
    Rule(
        "no-datasource",
        Stage.METADATA_SERVED,
        # An agent without an address to poll asks for metadata by itself.
        (*_BEFORE_METADATA, Stage.AGENT_POLLED),
        detectors.no_datasource,
        "check datasource_list in the image's /etc/cloud/cloud.cfg.d and ds-identify's policy in "
        "/etc/cloud/ds-identify.cfg: OpenStack or Ec2 must be allowed",
    ),
    # The agent does not poll, or is refused.
    Rule(
        "no-cfn-init-data",
        Stage.AGENT_POLLED,
        _POLL[:1],
        detectors.no_init_data,
        "give the server user_data_format: SOFTWARE_CONFIG in the template",
    ),
    Rule(
        "agent-missing",
        Stage.AGENT_POLLED,
        _AGENT,
        detectors.agent_missing,
        "build the image with the element os-collect-config (heat-config brings it)",
    ),
    Rule(
        "agent-disabled",
        Stage.AGENT_POLLED,
        _AGENT,
        detectors.agent_disabled,
        "enable it in the image: systemctl enable os-collect-config.service",
    ),
    Rule(
        "poll-refused",
        Stage.DEPLOYMENT_DELIVERED,
        _POLL,
        detectors.poll_refused,
        "the guest's credentials are not those of this stack: look for an older cfn-init-data or "
        "os-collect-config.conf in the image, and at the guest's clock",
    ),
    Rule(
        "endpoint-down",
        Stage.AGENT_POLLED,
        _POLL[:1],
        detectors.endpoint_down,
        "check metadata_url in the guest's /etc/os-collect-config.conf, and Heat's log",
        in_cloud="check metadata_url in the guest's /etc/os-collect-config.conf, and whether the "
        "guest reaches it",
    ),
    Rule(
        "endpoint-down",
        Stage.DEPLOYMENT_DELIVERED,
        _POLL[1:],
        detectors.endpoint_down,
        "see requests.jsonl and Heat's log in the artifacts",
        in_cloud="journalctl -u os-collect-config in the guest has the answers of the cloud's Heat",
    ),
    Rule(
        "agent-crashing",
        Stage.AGENT_POLLED,
        _AGENT,
        detectors.agent_crashing,
        "journalctl -u os-collect-config in the guest (guest/ in the artifacts) has its traceback",
    ),
    Rule(
        "poll-unknown",
        Stage.DEPLOYMENT_DELIVERED,
        _POLL,
        detectors.poll_unknown,
        "the guest asks for another stack or resource: look for an old configuration in the image",
    ),
    Rule(
        "not-delivered",
        Stage.DEPLOYMENT_DELIVERED,
        _POLL[1:],
        detectors.nothing_to_deliver,
        "look at the stack's events: does a deployment name this server? What does it wait for?",
    ),
    # The hook.
    Rule(
        "hook-not-executable",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        detectors.not_executable,
        "make the hook's file in /usr/libexec/heat-config/hooks executable (mode 0755)",
    ),
    Rule(
        "hook-misnamed",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        detectors.misnamed,
        "name the file as the group is named, without an ending",
    ),
    Rule(
        "hook-dropped",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        detectors.rejected("was dropped"),
        "change the group in the template: no element brings a hook for this one",
    ),
    Rule(
        "hook-missing",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        detectors.rejected("no hook", "not found", "missing", "does not exist", "not installed"),
        "build the image for that group too: hotplate build --group",
    ),
    Rule(
        "hook-rejected",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        detectors.rejected(),
        "see journalctl -u os-collect-config in the guest",
    ),
    Rule(
        "hook-interrupted",
        Stage.HOOK_FINISHED,
        (Stage.HOOK_FINISHED,),
        detectors.interrupted,
        "what rebooted or stopped the guest while the hook ran? See console.log",
    ),
    Rule(
        "hook-killed",
        Stage.HOOK_FINISHED,
        _OUTCOME,
        detectors.killed,
        "look for the OOM killer in console.log; does the configuration kill its own parent?",
    ),
    Rule(
        "hook-invalid-json",
        Stage.HOOK_FINISHED,
        _OUTCOME,
        detectors.bad_json,
        "a hook prints one JSON object on stdout and nothing else; what it printed is in the "
        "folder deployments of the artifacts",
        unsent=f"a hook prints one JSON object on stdout and nothing else; what it printed {_KEPT}",
    ),
    Rule(
        "hook-hanging",
        Stage.HOOK_FINISHED,
        (None,),
        detectors.too_long,
        "what it wrote until then is in the folder deployments of the artifacts; give it more time "
        "with the option timeout",
        unsent=f"what it wrote until then {_KEPT}; give it more time with the option timeout",
    ),
    Rule(
        "hook-hanging",
        Stage.HOOK_FINISHED,
        (Stage.HOOK_FINISHED,),
        detectors.hook_hangs,
        "see what it waits for in the guest: heat-config status; ps axf",
    ),
    # The signal.
    Rule(
        "signal-lost",
        Stage.SIGNAL_RECEIVED,
        (Stage.SIGNAL_RECEIVED,),
        detectors.signal_lost,
        "the runner signals again at the agent's next round; check the guest's network",
    ),
    Rule(
        "user-data-program-missing",
        Stage.SIGNAL_RECEIVED,
        (Stage.SIGNAL_RECEIVED,),
        detectors.wait_signal_without_program,
        console_patterns.BY_NAME["user-data-program-missing"].advice,
    ),
    Rule(
        "wait-signal-missing",
        Stage.SIGNAL_RECEIVED,
        (Stage.SIGNAL_RECEIVED,),
        detectors.wait_signal_missing_without_cloud_init,
        "the image has no cloud-init, which runs scripts of user data: let a deployment do it, or "
        "build the image with cloud-init",
    ),
    Rule(
        "wait-signal-missing",
        Stage.SIGNAL_RECEIVED,
        (Stage.SIGNAL_RECEIVED,),
        detectors.wait_signal_missing,
        "see what the user data does with the handle's address: /var/log/cloud-init-output.log in "
        "the guest, and cloud-init.log below guest/ of the artifacts",
    ),
    Rule(
        "signal-refused",
        Stage.SIGNAL_ACCEPTED,
        (Stage.SIGNAL_ACCEPTED,),
        detectors.signal_refused,
        "the signed URL is not valid: its credentials are another stack's, or it is older than 15 "
        "minutes (compare the guest's clock)",
    ),
    Rule(
        "signal-error",
        Stage.SIGNAL_ACCEPTED,
        (Stage.SIGNAL_ACCEPTED,),
        detectors.signal_errors,
        "see requests.jsonl and Heat's log in the artifacts",
        in_cloud="journalctl -u os-collect-config in the guest has the answers of the cloud's Heat",
    ),
    Rule(
        "signal-ignored",
        Stage.SIGNAL_ACCEPTED,
        (Stage.SIGNAL_ACCEPTED,),
        detectors.signal_ignored,
        "Heat ignores the signal of a deployment that is not in progress: see the stack's events",
    ),
    # All stages were reached, and the stack failed all the same.
    Rule(
        "hook-failed",
        Stage.HOOK_FINISHED,
        (None,),
        detectors.hook_failed,
        "all that it wrote is in the folder deployments of the artifacts",
        unsent=f"what it wrote {_KEPT}",
    ),
    Rule(
        "stack-failed",
        Stage.SIGNAL_ACCEPTED,
        (None,),
        detectors.stack_failed,
        "look at the stack's events in the timeline",
    ),
    # Likely symptoms, when no cause is known.
    Rule(
        "fails-again",
        None,
        _EVERY,
        detectors.fails_again,
        "see console.log for what is started again and again, and why it fails",
    ),
    Rule(
        "boot-waits",
        None,
        (*_BEFORE_METADATA, Stage.AGENT_POLLED),
        guest_boot.unit_not_ended,
        "let that unit end, or give it a limit (TimeoutStartSec=)",
    ),
)
