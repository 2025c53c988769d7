"""The stages of a run, from power-on to an accepted signal, as a table.

Each stage is proved from either end: by a request that the harness served (the primary proof) or
by a line on the guest's console.  A later stage proves the earlier ones, because an image need
not write anything on its console.  An image without an agent is asked after its boot for the
stages in :data:`ASKED`, none of which proves another.  The :mod:`~hotplate.verdict.tracker`
decides which of them are due for a server and its deployments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.kinds import GuestAnswer, GuestLogin, NetworkAnswer, PowerOn


class Stage(StrEnum):
    """The stages in their order; the value is shown to people."""

    BOOTED = "booted"
    NETWORK_UP = "network up"
    METADATA_SERVED = "metadata served"
    USER_DATA_RAN = "user data ran"
    CLOUD_INIT_DONE = "cloud-init done"
    HOST_NAME_SET = "host name set"
    ROOT_GROWN = "root file system grown"
    KEY_ACCEPTED = "ssh by Nova's key"
    AGENT_POLLED = "agent polled"
    DEPLOYMENT_DELIVERED = "deployment delivered"
    HOOK_STARTED = "hook started"
    HOOK_FINISHED = "hook finished"
    SIGNAL_RECEIVED = "signal received"
    SIGNAL_ACCEPTED = "signal accepted"


ORDER: tuple[Stage, ...] = tuple(Stage)
#: The stages that every server is expected to reach.
BOOT = ORDER[: ORDER.index(Stage.USER_DATA_RAN)]
#: The stages that the guest of an image without an agent is asked for after its boot.
ASKED = ORDER[ORDER.index(Stage.USER_DATA_RAN) : ORDER.index(Stage.AGENT_POLLED)]
#: The stages of a server with deployments.
DEPLOYED = tuple(stage for stage in ORDER if stage not in ASKED)
# From this stage on, each deployment has its own progress.
PER_DEPLOYMENT = ORDER[ORDER.index(Stage.DEPLOYMENT_DELIVERED) :]

# Lines that only a running init of the image writes; an initramfs and GRUB write similar ones.
_USERSPACE = re.compile(
    r"Welcome to (?!GRUB|.*[Ii]nitramfs).*!|login: ?$|Cloud-init v\. |"
    r"^\s*OpenRC [\d.]+ is starting up|"
    r"Reached target .*(?:(?i:multi-user)|(?i:graphical)|[Cc]loud-|[Ll]ogin)"
)
# A row of cloud-init's table of network devices: a device that is up and has an IPv4 address.
_ADDRESS = re.compile(r"ci-info: \| +(?!lo\b)\S+ +\| +True +\| +\d+\.\d+\.\d+\.\d+")
#: The words that the built-in user data write on the console (``templates/plain.yaml``).
USER_DATA_MARK = "hotplate: the user data ran"
# cloud-init's name of a drive, not of a seed that the image has in a directory.
_DRIVE = re.compile(
    r"Datasource DataSourceConfigDrive|DataSourceConfigDrive \[net=|"
    r"Datasource DataSourceNoCloud \[seed=/dev/"
)


@dataclass(frozen=True)
class StageRow:
    """A row of the stage table.

    :param look: the places to look at when the stage is not reached.
    :param look_in_cloud: the same for a run in a cloud, where ``look`` applies only to a run on
        this host; "" for the same.
    :param proves: returns the proof of the stage in an event, or ""; None for the stages that each
        deployment has of its own.
    """

    stage: Stage
    look: str
    proves: Callable[[Event], str] | None = None
    look_in_cloud: str = ""

    def advice(self, *, in_cloud: bool) -> str:
        """Return the places to look at, in a sentence without its full stop."""
        return f"look at {self.look_in_cloud if in_cloud and self.look_in_cloud else self.look}"


def _shown(event: Event, pattern: re.Pattern[str]) -> str:
    """Return the console line in an event that a pattern matches, "" for any other event."""
    text = classify.console_text(event)
    return text.strip() if text and pattern.search(text) else ""


def booted(event: Event) -> str:
    """Return the console line that shows the init of the image, "" for any other event."""
    return _shown(event, _USERSPACE)


def _network_up(event: Event) -> str:
    if classify.is_request(event) or event.kind in ("connect", "refused"):
        return "the guest reached the harness"
    if login := GuestLogin.of(event):
        return _let_in(login)
    if (answer := NetworkAnswer.of(event)) is not None and answer.up:
        return answer.text
    return _shown(event, _ADDRESS)


def _let_in(login: GuestLogin) -> str:
    return f'ssh let "{login.user}" in' + (" by the key pair" if login.key_pair else "")


def _metadata_served(event: Event) -> str:
    if (login := GuestLogin.of(event)) is not None and login.key_pair:
        return _let_in(login)
    if (started := PowerOn.of(event)) is not None and started.restored:
        return "restored from a state in which it had its metadata"
    if classify.is_metadata_fetch(event) and classify.answered(event):
        return classify.describe(event)
    return _shown(event, _DRIVE)


def _agent_polled(event: Event) -> str:
    return classify.describe(event) if classify.is_poll(event) else ""


def _user_data_ran(event: Event) -> str:
    text = classify.console_text(event)
    return text.strip() if text and USER_DATA_MARK in text else ""


def _answered(stage: Stage, shows: Callable[[Event], str] = lambda _: "") -> Callable[[Event], str]:
    """Return the function that finds a guest's answer about a stage.

    :param shows: returns another proof in an event, or "".
    """

    def proves(event: Event) -> str:
        answer = GuestAnswer.of(event)
        if answer and answer.reached and answer.stage == stage:
            return answer.text
        return shows(event)

    return proves


STAGES: tuple[StageRow, ...] = (
    StageRow(
        Stage.BOOTED,
        "the end of the console and the screenshot; boot the image by hand with qemu.sh",
        booted,
        look_in_cloud="the end of the console, and the server's state in the cloud",
    ),
    StageRow(
        Stage.NETWORK_UP,
        "the guest's network renderer (systemd-networkd, ifupdown) and its DHCP client",
        _network_up,
    ),
    StageRow(
        Stage.METADATA_SERVED,
        "cloud-init's datasource: /etc/cloud/cloud.cfg.d, ds-identify, /var/log/cloud-init.log",
        _metadata_served,
    ),
    StageRow(
        Stage.USER_DATA_RAN,
        "/var/log/cloud-init-output.log in the guest, and cloud_final_modules in /etc/cloud",
        _answered(Stage.USER_DATA_RAN, _user_data_ran),
    ),
    StageRow(
        Stage.CLOUD_INIT_DONE,
        "cloud-init status --long and /var/log/cloud-init.log in the guest",
        _answered(Stage.CLOUD_INIT_DONE),
    ),
    StageRow(
        Stage.HOST_NAME_SET,
        "preserve_hostname in /etc/cloud, and who writes /etc/hostname at boot",
        _answered(Stage.HOST_NAME_SET),
    ),
    StageRow(
        Stage.ROOT_GROWN,
        "growpart (cloud-guest-utils, cloud-utils-growpart) and the resizefs module of cloud-init; "
        "only the last partition of a disk can grow",
        _answered(Stage.ROOT_GROWN),
    ),
    StageRow(
        Stage.KEY_ACCEPTED,
        "the ssh server in the guest, and the authorized_keys of cloud-init's default user",
        _answered(Stage.KEY_ACCEPTED),
    ),
    StageRow(
        Stage.AGENT_POLLED,
        "the agent in the guest: systemctl status os-collect-config; "
        "journalctl -u os-collect-config",
        _agent_polled,
    ),
    StageRow(
        Stage.DEPLOYMENT_DELIVERED,
        "the answers to the agent's polls in requests.jsonl, and the stack's events",
        look_in_cloud="the stack's events, and in the guest journalctl -u os-collect-config",
    ),
    StageRow(
        Stage.HOOK_STARTED,
        "the runner in the guest: journalctl -u os-collect-config; ls -l "
        "/usr/libexec/heat-config/hooks",
    ),
    StageRow(
        Stage.HOOK_FINISHED,
        "what the hook is doing in the guest: heat-config status; ps axf",
    ),
    StageRow(
        Stage.SIGNAL_RECEIVED,
        "the notifier in the guest: journalctl -u os-collect-config | grep heat-config-notify",
    ),
    StageRow(
        Stage.SIGNAL_ACCEPTED,
        "the answer to the signal in requests.jsonl, and Heat's log",
        look_in_cloud="the answer to the signal: journalctl -u os-collect-config in the guest",
    ),
)
ROWS: dict[Stage, StageRow] = {row.stage: row for row in STAGES}


@dataclass(frozen=True)
class Mark:
    """A stage that was reached.

    :param at: seconds on the monotonic clock.
    :param evidence: the proof.
    :param implied: True when a later stage proved it.
    """

    stage: Stage
    at: float
    evidence: str
    implied: bool = False

    def implying(self, stage: Stage) -> Mark:
        """Return the mark of an earlier stage, which this one proves."""
        return replace(self, stage=stage, evidence=f"implied by: {self.stage}", implied=True)


def first_missing(reached: set[Stage], order: tuple[Stage, ...]) -> Stage | None:
    """Return the first stage of ``order`` that was not reached and has no later one that was."""
    missing: Stage | None = None
    for stage in reversed(order):
        if stage in reached:
            break
        missing = stage
    return missing
