"""The table of faults, with the detector and the advice of each.

The first rule that matches is the diagnosis, so certain rules stand before likely ones, and
causes in a guest's own state before their symptoms from outside.
"""

from __future__ import annotations

from hotplate.events import console_patterns
from hotplate.verdict import detectors, guest_boot
from hotplate.verdict.causes import CAUSES, Rule
from hotplate.verdict.stages import ORDER, ROWS, Stage

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
        "no-server",
        detectors.without_server,
        "an image is tested by a template with a server",
        missing=(*_EVERY, None),
        of_stack=True,
    ),
    Rule(
        "deployed-server",
        detectors.deployed_server,
        "put an OS::Nova::Server in its place: the image is booted as that",
        missing=(*_EVERY, None),
        of_stack=True,
    ),
    Rule(
        "paused-by-hook",
        detectors.paused_by_hook,
        "take the hook out of resource_registry in the environment, or clear it while the stack "
        "waits: openstack stack hook clear",
        missing=(*_EVERY, None),
        of_stack=True,
    ),
    Rule(
        "stack-failed",
        detectors.never_started,
        "look at the stack's events in the timeline, and at Heat's log in the artifacts",
        stage=Stage.BOOTED,
        in_cloud="look at the stack's events in the timeline, and at the server's state in the "
        "cloud",
    ),
    Rule(
        "stack-failed",
        detectors.resource_failed,
        "correct that resource in the template; this says nothing about the image",
        missing=(*_EVERY, None),
        of_stack=True,
    ),
    # The host is at fault.
    Rule(
        "host-disk",
        detectors.disk_of_host,
        "free some space where the artifacts are (df -h), or name another folder with --artifacts; "
        "this says nothing about the image",
        missing=(*_EVERY, None),
        in_cloud="ask who runs the cloud about its storage; this says nothing about the image",
    ),
    # The guest floods, see "What a guest can do" in docs/testing.rst.
    Rule(
        "console-flood",
        detectors.flood("console-flood"),
        "see console.log for what writes without end: a driver that reports an error again and "
        "again, a service that is started again and again",
        missing=(*_EVERY, None),
    ),
    Rule(
        "connection-flood",
        detectors.flood("connection-flood"),
        "look for a program in the guest that opens connections and does not close them",
        missing=(*_EVERY, None),
    ),
    Rule(
        "request-flood",
        detectors.flood("request-flood"),
        "see requests.jsonl for what is asked again and again without a pause",
        missing=(*_EVERY, None),
        in_cloud="look for a program in the guest that asks again and again without a pause",
    ),
    Rule(
        "storage-flood",
        detectors.flood("storage-flood"),
        "see requests.jsonl for what is written to Swift, Zaqar or Heat again and again",
        missing=(*_EVERY, None),
        in_cloud="look for a program in the guest that writes to Swift, Zaqar or Heat again and "
        "again",
    ),
    # The guest does not boot, or stopped.
    Rule(
        "root-not-found",
        detectors.console_finding("initramfs-shell", "no-root-filesystem", "root-waited-for"),
        "compare root= on the kernel command line with the label or UUID of the image's root file "
        "system; check that the initrd has the disk's driver, and loads it (Alpine's loads those "
        "of modules= on that command line)",
        stage=Stage.BOOTED,
    ),
    Rule(
        "emulation-failed",
        detectors.emulation_failed,
        "QEMU before 8.1 emulates several processors with such a fault, rarely: try again, or give "
        "the guest one processor (--cpus 1); this says nothing about the image",
        missing=_EVERY,
        in_cloud="try again; this says nothing about the image",
    ),
    Rule(
        "host-overloaded",
        detectors.console_finding("timer-too-late"),
        "try again, with less beside it on this host: QEMU's timer had no processor to tick on; "
        "this says nothing about the image",
        missing=_EVERY,
        in_cloud="try again, or another availability zone: this says nothing about the image",
    ),
    # An init that its CPU cannot run takes the kernel with it.
    Rule(
        "bad-cpu",
        detectors.console_finding("bad-cpu"),
        "name a CPU model that has them (--cpu), try it on a host with KVM, whose guests have the "
        "host's own CPU (hotplate doctor), or build the image for x86-64-v1; this says nothing of "
        "the image on a newer CPU",
        stage=Stage.BOOTED,
        missing=_EVERY,
        in_cloud="boot with a flavor whose hosts have a newer CPU, or build the image for "
        "x86-64-v1",
    ),
    Rule(
        "kernel-panic",
        detectors.panic,
        "read console.log above the panic; try more memory (--memory)",
        stage=Stage.BOOTED,
        missing=_EVERY,
        in_cloud="read console.log above the panic; try a flavor with more memory",
    ),
    Rule(
        "boot-loop",
        detectors.boot_loop,
        "a kernel that resets the machine at once often needs more memory (--memory), or a newer "
        "CPU, as guests have with KVM (hotplate doctor); see console.log and the screenshot",
        stage=Stage.BOOTED,
        in_cloud="a kernel that resets the machine at once often needs more memory: try a larger "
        "flavor, and see console.log",
    ),
    Rule(
        "boot-menu",
        guest_boot.menu_waits,
        console_patterns.BY_NAME["grub-menu"].advice,
        stage=Stage.BOOTED,
    ),
    Rule(
        "too-little-memory",
        detectors.console_finding("grub-out-of-memory"),
        console_patterns.BY_NAME["grub-out-of-memory"].advice,
        stage=Stage.BOOTED,
        in_cloud=console_patterns.BY_NAME["grub-out-of-memory"].in_cloud,
    ),
    *(
        Rule(
            name,
            detectors.console_finding(name),
            console_patterns.BY_NAME[name].advice,
            stage=Stage.BOOTED,
        )
        for name in ("unsigned-kernel", "unsigned-grub", "unsigned-loader")
    ),
    # The silence of a lost machine proves nothing.
    Rule(
        "machine-lost",
        detectors.machine_gone,
        "see what QEMU wrote and the end of console.log; this says nothing about the image",
        missing=_EVERY,
        in_cloud="see the end of console.log and the server's state in the cloud; this says "
        "nothing about the image",
    ),
    Rule(
        "no-bootable-kernel",
        detectors.nothing_booted,
        "look at the screenshot; check that the image has a kernel and a boot loader for this "
        "firmware, and that the kernel's command line has console=ttyS0",
        stage=Stage.BOOTED,
        in_cloud="check that the image has a kernel and a boot loader for the cloud's firmware, "
        "and that the kernel's command line has console=ttyS0",
    ),
    Rule(
        "guest-stopped",
        detectors.guest_stopped,
        "see the end of console.log for who asked for it",
        missing=_EVERY,
    ),
    Rule(
        "not-back",
        detectors.not_back,
        "see the end of console.log, and what asked for the reboot",
        stage=Stage.BOOTED,
    ),
    # Faults inside a guest that could be examined.
    *CAUSES,
    # The guest boots, and gets no metadata.
    Rule(
        "no-dhcp",
        detectors.no_dhcp,
        "check that a network renderer is installed and enabled in the image and asks for DHCP "
        "(systemd-networkd with a .network file for en* and eth*)",
        stage=Stage.NETWORK_UP,
        missing=_BEFORE_METADATA,
    ),
    Rule(
        "network-silent",
        detectors.network_silent,
        "look at what is to bring the network up when the boot goes on, in the image: systemd-"
        "networkd, ifupdown or NetworkManager, enabled and for these devices; a lease of "
        "cloud-init's first stage ends with that",
        stage=Stage.NETWORK_UP,
    ),
    Rule(
        "metadata-404",
        detectors.metadata_errors,
        "see requests.jsonl for the paths that the guest asked for",
        stage=Stage.METADATA_SERVED,
        missing=_BEFORE_METADATA,
        in_cloud="see /var/log/cloud-init.log in the guest for the paths that it asked for",
    ),
    Rule(
        "metadata-refused",
        detectors.metadata_refused,
        "check the guest's routes and firewall, and the harness's wiring in verdict.json",
        stage=Stage.METADATA_SERVED,
        missing=_BEFORE_METADATA,
        in_cloud="check the guest's routes and firewall, and the cloud's security groups",
    ),
    Rule(
        "no-datasource",
        detectors.no_datasource,
        "check datasource_list in the image's /etc/cloud/cloud.cfg.d and ds-identify's policy in "
        "/etc/cloud/ds-identify.cfg: OpenStack or Ec2 must be allowed",
        stage=Stage.METADATA_SERVED,
        # An agent without an address to poll asks for metadata by itself.
        missing=(*_BEFORE_METADATA, Stage.AGENT_POLLED),
    ),
    # The agent does not poll, or is refused.
    Rule(
        "no-cfn-init-data",
        detectors.no_init_data,
        "give the server user_data_format: SOFTWARE_CONFIG in the template",
        stage=Stage.AGENT_POLLED,
    ),
    Rule(
        "agent-missing",
        detectors.agent_missing,
        "build the image with the element os-collect-config (heat-config brings it)",
        stage=Stage.AGENT_POLLED,
        missing=_AGENT,
    ),
    Rule(
        "poll-refused",
        detectors.poll_refused,
        "the guest's credentials are not those of this stack: look for an older cfn-init-data or "
        "os-collect-config.conf in the image, and at the guest's clock",
        stage=Stage.DEPLOYMENT_DELIVERED,
        missing=_POLL,
    ),
    Rule(
        "endpoint-down",
        detectors.endpoint_down,
        "check metadata_url in the guest's /etc/os-collect-config.conf, and Heat's log",
        stage=Stage.AGENT_POLLED,
        in_cloud="check metadata_url in the guest's /etc/os-collect-config.conf, and whether the "
        "guest reaches it",
    ),
    Rule(
        "endpoint-down",
        detectors.endpoint_down,
        "see requests.jsonl and Heat's log in the artifacts",
        stage=Stage.DEPLOYMENT_DELIVERED,
        in_cloud="journalctl -u os-collect-config in the guest has the answers of the cloud's Heat",
    ),
    Rule(
        "agent-crashing",
        detectors.agent_crashing,
        "journalctl -u os-collect-config in the guest (guest/ in the artifacts) has its traceback",
        stage=Stage.AGENT_POLLED,
        missing=_AGENT,
    ),
    Rule(
        "poll-unknown",
        detectors.poll_unknown,
        "the guest asks for another stack or resource: look for an old configuration in the image",
        stage=Stage.DEPLOYMENT_DELIVERED,
        missing=_POLL,
    ),
    Rule(
        "not-delivered",
        detectors.nothing_to_deliver,
        "look at the stack's events: does a deployment name this server? What does it wait for?",
        stage=Stage.DEPLOYMENT_DELIVERED,
    ),
    # The hook.
    Rule(
        "hook-not-executable",
        detectors.not_executable,
        "make the hook's file in /usr/libexec/heat-config/hooks executable (mode 0755)",
        stage=Stage.HOOK_STARTED,
    ),
    Rule(
        "hook-misnamed",
        detectors.misnamed,
        "give both one name: correct the group in the template, or the name of the hook's file, "
        "which has no ending",
        stage=Stage.HOOK_STARTED,
    ),
    Rule(
        "hook-dropped",
        detectors.rejected("was dropped"),
        "change the group in the template: no element brings a hook for this one",
        stage=Stage.HOOK_STARTED,
    ),
    Rule(
        "hook-missing",
        detectors.rejected("no hook", "not found", "missing", "does not exist", "not installed"),
        "build the image for that group too: hotplate build --group",
        stage=Stage.HOOK_STARTED,
    ),
    Rule(
        "hook-rejected",
        detectors.rejected(),
        "see journalctl -u os-collect-config in the guest",
        stage=Stage.HOOK_STARTED,
    ),
    Rule(
        "hook-interrupted",
        detectors.interrupted,
        "what rebooted or stopped the guest while the hook ran? See console.log",
        stage=Stage.HOOK_FINISHED,
    ),
    Rule(
        "hook-killed",
        detectors.killed,
        "look for the OOM killer in console.log; does the configuration kill its own parent?",
        stage=Stage.HOOK_FINISHED,
        missing=_OUTCOME,
    ),
    Rule(
        "hook-invalid-json",
        detectors.bad_json,
        "a hook prints one JSON object on stdout and nothing else; what it printed is in the "
        "folder deployments of the artifacts",
        stage=Stage.HOOK_FINISHED,
        missing=_OUTCOME,
        unsent=f"a hook prints one JSON object on stdout and nothing else; what it printed {_KEPT}",
    ),
    Rule(
        "hook-hanging",
        detectors.too_long,
        "what it wrote until then is in the folder deployments of the artifacts; give it more time "
        "with the option timeout",
        stage=Stage.HOOK_FINISHED,
        missing=(None,),
        unsent=f"what it wrote until then {_KEPT}; give it more time with the option timeout",
    ),
    Rule(
        "hook-hanging",
        detectors.hook_hangs,
        "see what it waits for in the guest: heat-config status; ps axf",
        stage=Stage.HOOK_FINISHED,
    ),
    # The signal.
    Rule(
        "signal-lost",
        detectors.signal_lost,
        "the runner signals again at the agent's next round; check the guest's network",
        stage=Stage.SIGNAL_RECEIVED,
    ),
    Rule(
        "user-data-program-missing",
        detectors.wait_signal_without_program,
        console_patterns.BY_NAME["user-data-program-missing"].advice,
        stage=Stage.SIGNAL_RECEIVED,
    ),
    Rule(
        "wait-signal-missing",
        detectors.wait_signal_missing_without_cloud_init,
        "the image has no cloud-init, which runs scripts of user data: let a deployment do it, or "
        "build the image with cloud-init",
        stage=Stage.SIGNAL_RECEIVED,
    ),
    Rule(
        "wait-signal-missing",
        detectors.wait_signal_missing,
        "see what the user data does with the handle's address: /var/log/cloud-init-output.log in "
        "the guest, and cloud-init.log below guest/ of the artifacts",
        stage=Stage.SIGNAL_RECEIVED,
    ),
    Rule(
        "signal-refused",
        detectors.signal_refused,
        "the signed URL is not valid: its credentials are another stack's, or it is older than 15 "
        "minutes (compare the guest's clock)",
        stage=Stage.SIGNAL_ACCEPTED,
    ),
    Rule(
        "signal-error",
        detectors.signal_errors,
        "see requests.jsonl and Heat's log in the artifacts",
        stage=Stage.SIGNAL_ACCEPTED,
        in_cloud="journalctl -u os-collect-config in the guest has the answers of the cloud's Heat",
    ),
    Rule(
        "signal-ignored",
        detectors.signal_ignored,
        "Heat ignores the signal of a deployment that is not in progress: see the stack's events",
        stage=Stage.SIGNAL_ACCEPTED,
    ),
    # An image without an agent, asked after its boot.
    *(
        Rule(fault, detectors.answered, ROWS[stage].advice(in_cloud=False), stage=stage)
        for fault, stage in (
            ("user-data-not-run", Stage.USER_DATA_RAN),
            ("cloud-init-failed", Stage.CLOUD_INIT_DONE),
            ("host-name-not-set", Stage.HOST_NAME_SET),
            ("root-not-grown", Stage.ROOT_GROWN),
            ("key-not-accepted", Stage.KEY_ACCEPTED),
        )
    ),
    # All stages were reached, and the stack failed all the same.
    Rule(
        "hook-reaches-out",
        detectors.hook_reaches_out,
        "in the harness a guest reaches the servers on its networks, and nothing outside: put what "
        "the hook fetches into the image; what it wrote is in the folder deployments of the "
        "artifacts",
        stage=Stage.HOOK_FINISHED,
        missing=(None,),
        in_cloud="see whether the server's network leads outside, and has a name server; what "
        "the hook wrote is in the folder deployments of the artifacts",
    ),
    Rule(
        "hook-failed",
        detectors.hook_failed,
        "what it wrote is in the folder deployments of the artifacts",
        stage=Stage.HOOK_FINISHED,
        missing=(None,),
        unsent=f"what it wrote {_KEPT}",
    ),
    Rule(
        "stack-failed",
        detectors.stack_failed,
        "look at the stack's events in the timeline",
        stage=Stage.SIGNAL_ACCEPTED,
        missing=(None,),
    ),
    # Likely symptoms, when no cause is known.
    Rule(
        "fails-again",
        detectors.fails_again,
        "see console.log for what is started again and again, and why it fails",
        missing=_EVERY,
    ),
    Rule(
        "boot-waits",
        guest_boot.unit_not_ended,
        "let that unit end, or give it a limit (TimeoutStartSec=)",
        missing=(*_BEFORE_METADATA, Stage.AGENT_POLLED),
    ),
)
