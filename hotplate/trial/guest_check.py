"""Ask the guest of an image without an agent, after its boot, for the effects of its metadata.

Each answer is a stage of :data:`~hotplate.verdict.stages.ASKED`.  The guest is asked by the root
shell that its vendor data start, or that a container has; without one by ssh, with the key pair
that Nova gave it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from paramiko import ECDSAKey

from hotplate.errors import HostError, HotplateError
from hotplate.events.kinds import GuestAnswer
from hotplate.guest.base import Guest
from hotplate.guest.ssh import Ssh
from hotplate.inspection.inspection import Inspection
from hotplate.machine.machine import Capability
from hotplate.stacks.template import Template
from hotplate.testbed.maker import DISK_KEY
from hotplate.testbed.server import SSH_PORT, Server
from hotplate.timing.deadline import DeadlineExceeded, GuestDeadline
from hotplate.trial.guest_probe import wait_for_boot
from hotplate.trial.guests import Guests
from hotplate.verdict.stages import ASKED, Stage
from hotplate.verdict.tracker import StageTracker

#: GiB by which the server's disk is larger than the image.
GROW_GIB = 2
SHELL_SECONDS = 5.0
SSH_SECONDS = 30.0
SSH = "ssh by Nova's key"
#: Limit of the words of cloud-init that are quoted.
MAX_WORDS = 300
#: The users of the distributions' own images, where cloud-init's configuration names none.
USERS = (
    *("root", "cloud-user", "debian", "ubuntu", "rocky", "almalinux", "centos", "fedora"),
    *("opensuse", "alpine", "core"),
)
#: The file that the built-in user data leave.
USER_DATA_FILE = "/run/hotplate/user-data"

_QUESTION = f"""\
echo "name=$(cat /proc/sys/kernel/hostname)"
echo "root=$(stat -f -c '%b %S' /)"
test -e {USER_DATA_FILE} && echo ran=yes
for each in status result; do
    test -e /run/cloud-init/$each.json && echo "$each=$(tr -d '\n' </run/cloud-init/$each.json)"
done
true
"""
#: cloud-init takes seconds to load under emulation, so it is asked only where its files do not say
#: that all is well.
_STATUS = """\
command -v cloud-init >/dev/null && cloud-init status --long | sed 's/^/cloud-init: /'
true
"""


@dataclass(frozen=True)
class PlainImage:
    """The properties of an image without an agent on which the questions to its guest depend.

    :param reader: the program that reads the metadata, "" when there is none that is known.
    :param user: the user that gets Nova's key, "" when unknown.
    :param has_ssh: an ssh server is installed.
    :param root_bytes: of its root partition.
    """

    reader: str
    user: str
    has_ssh: bool
    root_bytes: int
    disk_bytes: int

    @classmethod
    def unread(cls, disk_bytes: int) -> PlainImage:
        """Return the properties of an image that cannot be read: everything may be there."""
        return cls("an unknown program", "", True, root_bytes=disk_bytes, disk_bytes=disk_bytes)

    @classmethod
    def of(cls, inspection: Inspection) -> PlainImage:
        """Return the properties of an image."""
        contents, root = inspection.contents, inspection.root
        if contents is None or root is None:
            return cls.unread(inspection.file.virtual_size)
        return cls(
            contents.metadata_reader,
            contents.default_user,
            contents.has_ssh_server,
            root.size,
            inspection.file.virtual_size,
        )

    def fitted(self, template: Template, public_key: str) -> Template:
        """Return the built-in template with a key pair, a larger disk, and user data for it.

        :param public_key: a line of OpenSSH's.
        """
        gib = -(-self.disk_bytes >> 30) + GROW_GIB
        resources = template.template["resources"]
        properties = {
            **resources["server"]["properties"],
            "key_name": {"get_resource": "key"},
            "metadata": {DISK_KEY: str(gib)},
        }
        if self.reader in ("Ignition", "Afterburn"):
            properties["user_data"] = json.dumps(_IGNITION)
        key = {"name": "hotplate", "public_key": public_key}
        fitted = {
            "key": {"type": "OS::Nova::KeyPair", "properties": key},
            "server": {**resources["server"], "properties": properties},
        }
        return replace(template, template={**template.template, "resources": fitted})


#: The user data of an image with Ignition (specification 3.0.0); not tried on one.
_IGNITION = {
    "ignition": {"version": "3.0.0"},
    "systemd": {
        "units": [
            {
                "name": "hotplate-user-data.service",
                "enabled": True,
                "contents": "[Service]\nType=oneshot\nRuntimeDirectory=hotplate\n"
                f"RuntimeDirectoryPreserve=yes\nExecStart=/usr/bin/touch {USER_DATA_FILE}\n"
                "[Install]\nWantedBy=multi-user.target\n",
            }
        ]
    },
}


class GuestCheck:
    """Asks each guest of a run once, when its boot has ended.

    :param key: of the servers' key pair.
    :param seconds: the longest time to wait for the end of cloud-init.
    """

    def __init__(self, guests: Guests, *, image: PlainImage, key: ECDSAKey, seconds: float) -> None:
        self._guests = guests
        self._events = guests.events
        self._image = image
        self._key = key
        self._seconds = seconds

    def look(self) -> None:
        """Ask the guests whose boot has ended, and whose network has answered."""
        for identity, tracker in list(self._guests.trackers.items()):
            if not self._image.reader and Stage.METADATA_SERVED not in tracker.answers:
                # Not awaited; a request of a program that is not known counts.
                nothing = GuestAnswer(str(Stage.METADATA_SERVED), None, NO_READER)
                self._events.add(nothing, server=identity)
        for server, tracker in self._open():
            if tracker.boots.ended and tracker.network_answered:
                self._ask(server, tracker, seconds=self._seconds)

    def conclude(self) -> None:
        """Ask the guests that have not been asked; one that misses another stage fails by that."""
        for server, tracker in self._open():
            # The end of its boot has been waited for.
            self._ask(server, tracker, seconds=SHELL_SECONDS)

    # -- inside ----------------------------------------------------------------------------------

    def _open(self) -> Iterator[tuple[Server, StageTracker]]:
        for server, tracker in self._guests.settled():
            if not tracker.answered and tracker.missing_before_answers() is None:
                yield server, tracker

    def _ask(self, server: Server, tracker: StageTracker, *, seconds: float) -> None:
        read = bool(self._image.reader) or tracker.reached(Stage.METADATA_SERVED)
        # Nova's key is in the metadata.
        by_ssh, key = self._by_ssh(server) if read else (None, (None, NO_READER))
        answers = {Stage.KEY_ACCEPTED: key}
        shell: Guest | None = _shell(server)
        if shell is None and by_ssh is not None:
            shell = by_ssh
            server.login = partial(self._log_in, server, by_ssh.user)
        unanswered: _Answer = (None, "nothing lets the harness in")
        try:
            answers |= self._inside(server, shell, seconds) if shell is not None else {}
        except (HotplateError, DeadlineExceeded, OSError) as error:
            unanswered = (False, f"the guest gave no answer: {error}")
        finally:
            if by_ssh is not None:
                by_ssh.close()
        for stage in ASKED:
            reached, text = answers.get(stage, unanswered)
            if reached is False and not read:
                reached, text = None, NO_READER
            self._events.add(GuestAnswer(str(stage), reached, text), server=server.spec.id)

    def _by_ssh(self, server: Server) -> tuple[Ssh | None, _Answer]:
        """Return a connection by Nova's key, None where there is none, and the answer."""
        if not self._image.has_ssh:
            return None, (None, "the image has no ssh server")
        users = (self._image.user,) if self._image.user else USERS
        deadline = GuestDeadline(SSH_SECONDS, SSH)
        why = ""
        for user in users:
            try:
                ssh = self._log_in(server, user, max(1.0, deadline.left / len(users)))
                return ssh, (True, f'ssh let "{user}" in by the key pair')
            except HostError as error:
                return None, (None, error.message)
            except HotplateError as error:
                why = error.message
            except (DeadlineExceeded, OSError) as error:
                why = str(error)
        return None, (False, why)

    def _log_in(self, server: Server, user: str, seconds: float) -> Ssh:
        """Return a connection; see :meth:`Ssh.attach` for the errors."""
        ssh = Ssh(lambda: server.machine.wiring.connect(SSH_PORT), keys=[self._key], user=user)
        ssh.attach(GuestDeadline(seconds, SSH))
        return ssh

    def _inside(self, server: Server, shell: Guest, seconds: float) -> dict[Stage, _Answer]:
        late = wait_for_boot(lambda: shell, seconds=seconds)
        text = shell.run(_QUESTION).check().text
        # A guest can write anything here.
        said = dict(re.findall(r"^(name|root|ran)=(.{0,253})", text, re.MULTILINE))
        ran = "ran" in said
        return {
            Stage.CLOUD_INIT_DONE: self._cloud_init(shell, text, late),
            Stage.USER_DATA_RAN: (ran, _RAN if ran else _NOT_RUN),
            Stage.HOST_NAME_SET: _host_name(said.get("name", ""), server.spec.name),
            Stage.ROOT_GROWN: self._root(server, said.get("root", "")),
        }

    def _cloud_init(self, shell: Guest, text: str, late: str) -> _Answer:
        if _ended_well(text):
            return True, "cloud-init says status: done"
        text = shell.run(_STATUS).check().text
        lines = re.findall(r"^cloud-init: (.*)$", text, re.MULTILINE)
        if not lines:
            return None, "the image has no cloud-init"
        # Since 23.4 "extended_status: degraded done" is a status with recoverable errors.
        status = [each for each in lines if each.startswith(("status: ", "extended_status: "))]
        if "status: done" in status:
            return True, f"cloud-init says {'; '.join(status)[:MAX_WORDS]}"
        # Its end was waited for, and another unit's of the same boot.
        # Until 23.3 the errors are the last lines, after "detail:".
        old = lines[lines.index("detail:") :] if "detail:" in lines else []
        wrong = [*status, *(old or [each for each in lines if re.match(r"detail|\s*- ", each)])]
        words = "; ".join(wrong)[:MAX_WORDS]
        return False, "; ".join(filter(None, [f'cloud-init says "{words}"', late]))

    def _root(self, server: Server, root: str) -> _Answer:
        if Capability.KERNEL not in server.machine.capabilities:
            return None, "a container has no disk of its own"
        if not (said := re.fullmatch("([0-9]{1,18}) ([0-9]{1,9})", root)):
            return None, "the guest does not say how large its root file system is"
        gib, before = int(said[1]) * int(said[2]) / 2**30, self._image.root_bytes / 2**30
        told = f"the root file system has {gib:.1f} GiB, in the image at most {before:.1f}"
        if gib >= before + GROW_GIB / 2:
            return True, told
        return False, f"{told}, and the disk {GROW_GIB} GiB more than the image"


#: The value of :attr:`GuestAnswer.reached`, and its text.
_Answer = tuple[bool | None, str]
NO_READER = "neither cloud-init nor Ignition nor another program of the image reads the metadata"
_RAN = f"the user data left {USER_DATA_FILE}"
_NOT_RUN = f"the user data left no {USER_DATA_FILE}"


def _ended_well(text: str) -> bool:
    """Return whether the files say what ``cloud-init status`` calls "done", without any errors.

    Source: cloud-init's reference, "Status report" (``status.json`` and ``result.json``).
    """
    files = dict(re.findall(r"^(status|result)=(.{0,65536})$", text, re.MULTILINE))
    # A guest can write anything here.
    with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError, RecursionError):
        status, result = (json.loads(files[each])["v1"] for each in ("status", "result"))
        stages = [each for each in status.values() if isinstance(each, dict)]
        ended = all(each["finished"] for each in stages if each["start"])
        return bool(ended and status["modules-final"]["finished"]) and not any(
            each.get("errors") or each.get("recoverable_errors") for each in (*stages, result)
        )
    return False


def _shell(server: Server) -> Guest | None:
    try:
        return server.shell(seconds=SHELL_SECONDS)
    except (HotplateError, DeadlineExceeded, OSError):
        return None


def _host_name(name: str, wanted: str) -> _Answer:
    # cloud-init sets the first label, or the whole name of the metadata.
    if name.partition(".")[0] == wanted:
        return True, f'the host name is "{name}"'
    return False, f'the host name is "{name}", and the server\'s name "{wanted}"'
