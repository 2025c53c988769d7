"""Follow a stack in a cloud by polling; changes become events.

A cloud sends no notifications: Heat is asked for its events and for the metadata of each server,
Nova for the servers and their consoles, at intervals that grow while nothing happens.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hotplate.cloud import expected_deployments
from hotplate.elsewhere.os_cloud import OsCloud
from hotplate.errors import HotplateError
from hotplate.events import expected
from hotplate.events.background import Background
from hotplate.events.classify import STACK_TYPE
from hotplate.events.expected import ExpectedDeployment
from hotplate.events.kinds import (
    ConsoleLine,
    MachineExit,
    PowerOn,
    ServerBoot,
    ServerState,
    StackResource,
)
from hotplate.events.log import clipped
from hotplate.text import file_name
from hotplate.timing.deadline import Deadline, Pauses

SERVER_TYPES = frozenset({"OS::Nova::Server", "AWS::EC2::Instance"})
MAX_NESTED = 10

#: The characters after which two texts are taken for the same one.
SAME = 20


@dataclass(frozen=True)
class Resource:
    """One resource.

    :param stack: the id of its stack.
    :param physical: its id in its service.
    """

    stack: str
    name: str
    type: str
    physical: str


class StackTree:
    """The resources of one stack, by which deployments are named.

    See :func:`hotplate.cloud.expected_deployments.deployments`.

    :param name: of the stack, and ``identity`` its id.
    """

    def __init__(self, name: str, identity: str) -> None:
        self._name = name
        self._id = identity
        self._resources: dict[tuple[str, str], Resource] = {}
        self._within: dict[str, tuple[str, str]] = {}
        #: Of resources, those of earlier tries included: the stack's reason is that of the first.
        self._reasons: set[str] = set()

    def learn(self, listed: Iterable[Any]) -> None:
        """Add the answer of ``resources.list`` with ``nested_depth``."""
        for each in listed:
            links = {link["rel"]: link["href"] for link in each.links}
            stack = stack_of(links.get("stack", "")) or self._id
            made = Resource(
                stack, each.resource_name, each.resource_type, each.physical_resource_id or ""
            )
            self._reasons.add(_reason(each))
            self._resources[stack, made.name] = made
            if nested := stack_of(links.get("nested", "")):
                self._within[nested] = (stack, made.name)

    @property
    def servers(self) -> list[Resource]:
        """Return the existing servers."""
        return [
            each for each in self._resources.values() if each.type in SERVER_TYPES and each.physical
        ]

    def label(self, stack_id: str, resource: str) -> str:
        """Return the name of a resource, with the names of those that it is nested in."""
        words = [resource]
        while stack_id in self._within and len(words) <= MAX_NESTED:
            stack_id, outer = self._within[stack_id]
            words.insert(0, outer)
        return ".".join(words)

    def change(self, event: Any) -> StackResource:
        """Return the change in an event of Heat's API.

        Events have no types; those are taken from the resources (heat/api/openstack/v1/events.py).
        So is the end of a reason, of which events have 255 characters (heat/db/models.py), and the
        stacks of Heat 19, too.
        """
        links = {link["rel"]: link["href"] for link in event.links}
        stack = stack_of(links.get("stack", "")) or self._id
        name = event.resource_name
        whole = event.physical_resource_id == stack
        resource = self._resources.get((stack, name))
        action, _, status = event.resource_status.partition("_")
        cut = _reason(event)
        reason = max((cut, *(_joined(cut, each) for each in self._reasons)), key=len)
        self._reasons.add(reason)
        return StackResource(
            stack=links["stack"].split("/")[-2] if "stack" in links else self._name,
            stack_id=stack,
            resource=name,
            label=self.label(stack, name),
            type=STACK_TYPE if whole else resource.type if resource else "",
            action=action,
            status=status,
            reason=reason,
        )


def _reason(of: Any) -> str:
    """Return the reason of an event or a resource as one line: Neutron's have two."""
    return " ".join((of.resource_status_reason or "").split())


def _joined(cut: str, whole: str) -> str:
    """Return a text completed by another one, at whose beginning it was cut.

    >>> _joined("CREATE failed: BadRequest: the image is 32", "BadRequest: the image is 3221 bytes")
    'CREATE failed: BadRequest: the image is 3221 bytes'
    """
    for length in range(min(len(cut), len(whole)), SAME, -1):
        if cut.endswith(whole[:length]):
            return cut + whole[length:]
    return cut


def stack_of(href: str) -> str:
    """Return the id of the stack in a URL of Heat's, "" when it has none.

    >>> stack_of("http://heat/v1/project/stacks/web/1234")
    '1234'
    """
    before, _, rest = href.partition("/stacks/")
    parts = rest.split("/")
    return parts[1] if before and len(parts) > 1 else ""


PAUSE_SECONDS = 1.0
MAX_PAUSE = 8.0
#: How long a cloud may fail to answer before it is given up.
AWAY_SECONDS = 120.0

#: The number of Heat's events fetched at once.
PAGE = 500


#: The most lines read of one server; later lines are ignored.
LINES = 30_000


class ConsoleText:
    r"""The console of one server.

    Nova returns its end, of bounded length, so that the beginning moves on; the console of a
    restarted server may begin empty.

    >>> console = ConsoleText()
    >>> console.new("a\nb\nc\n")
    ['a', 'b', 'c']
    >>> console.new("b\nc\nd\nlog")
    ['d']
    >>> console.new("b\nc\nd\nlogin: ")
    []
    >>> console.new("b\nc\nd\nlogin: ")
    ['login: ']
    >>> console.new("b\nc\nd\nlogin: \ne\n")
    ['e']
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._open = self._prompt = ""
        self._taken = 0

    def new(self, text: str) -> list[str]:
        """Return the lines that were not there before.

        An unfinished line is returned once it is unchanged: it may be a prompt.

        :param text: the present console.
        """
        lines = text.replace("\r\n", "\n").split("\n")
        last = lines.pop()
        fresh = lines[_shared(self._lines, lines) :]
        self._lines = lines
        if fresh and self._prompt:
            # It was returned before it was finished.
            fresh = fresh[1:] if fresh[0] == self._prompt else fresh
            self._prompt = ""
        if last and last == self._open and last != self._prompt:
            fresh.append(last)
            self._prompt = last
        self._open = last
        fresh = fresh[: max(0, LINES - self._taken)]
        self._taken += len(fresh)
        return [clipped(each) for each in fresh]


def _shared(before: list[str], now: list[str]) -> int:
    """Return how many of the first lines repeat the earlier ones, or the end of those."""
    for start in range(len(before)):
        length = len(before) - start
        # The first line may be cut at its beginning.
        same = now[:1] == before[start : start + 1] or (start > 0 and length > 1)
        if same and now[1:length] == before[start + 1 :]:
            return length
    return 0


@dataclass
class Followed:
    """The state of one server.

    :param flavor: the name of its flavor, or the id.
    :param has_floating: the first of its addresses is a floating one.
    """

    id: str
    name: str = ""
    status: str = ""
    fault: str = ""
    flavor: str = ""
    addresses: tuple[str, ...] = ()
    has_floating: bool = False
    console: ConsoleText = field(default_factory=ConsoleText)
    deployments: list[ExpectedDeployment] | None = None


class Following:
    """Follows one stack, in a thread of its own; a context manager.

    :param stack: its name, and ``stack_id`` its id.
    :param directory: the folder of the servers' consoles, one folder each.
    :ivar servers: by their id.
    """

    def __init__(
        self,
        cloud: OsCloud,
        *,
        stack: str,
        stack_id: str,
        directory: Path,
    ) -> None:
        self.servers: dict[str, Followed] = {}
        self._cloud = cloud
        self._events = cloud.events
        self._stack = stack
        #: By the id alone Heat answers with a redirection to this, and is asked twice.
        self._identifier = f"{stack}/{stack_id}"
        self._directory = directory
        self._tree = StackTree(stack, stack_id)
        self._seen: set[str] = set()
        self._fresh: list[Any] = []
        self._marker = ""
        self._problem: HotplateError | None = None
        self._away = Deadline(AWAY_SECONDS, "the cloud to answer")
        self._asking = threading.Lock()
        self._ended = threading.Event()
        self._thread = Background(self._events, self._run, name="following")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(AWAY_SECONDS)

    def why(self) -> str:
        """Return the reason that following has ended: "" while the cloud answers."""
        return self._problem.message if self._problem is not None else ""

    def check(self) -> None:
        """Poll once more, now.

        :raises HotplateError: when the cloud no longer answers.
        """
        if self._problem is not None:
            raise self._problem
        with self._asking:
            self._ask()

    # -- inside ----------------------------------------------------------------------------------

    def _run(self) -> None:
        pauses = Pauses(PAUSE_SECONDS, longest=MAX_PAUSE)
        took = 0.0
        # Leave a cloud that answers slowly, because it is busy, two thirds of its time.
        while not self._ended.wait(max(pauses.next(), min(2 * took, MAX_PAUSE))):
            before = len(self._events)
            began = time.monotonic()
            try:
                with self._asking:
                    self._ask()
                self._away = Deadline(AWAY_SECONDS, "the cloud to answer")
            except HotplateError as error:
                if self._away.passed:
                    self._problem = error
                    return
            took = time.monotonic() - began
            if len(self._events) != before:
                pauses.reset()

    def _ask(self) -> None:
        """Poll everything once, and emit changes."""
        with self._cloud.translated("the stack's events"):
            self._take_events()
            if self._fresh or not self._tree.servers:
                heat = self._cloud.heat()
                self._tree.learn(heat.resources.list(self._identifier, nested_depth=MAX_NESTED))
        for resource in self._tree.servers:
            self._look_at(resource)
        # After the servers: their deployments must be known before Heat's events of those. When a
        # service did not answer, the events wait for the next poll.
        while self._fresh:
            each = self._fresh.pop(0)
            change = self._tree.change(each)
            server = each.physical_resource_id if "Server" in change.type else ""
            self._events.add(change, server=server or "")

    def _take_events(self) -> None:
        """Fetch Heat's new events, in order."""
        while True:
            page: Mapping[str, object] = {"marker": self._marker} if self._marker else {}
            listed = self._cloud.heat().events.list(
                self._identifier, nested_depth=MAX_NESTED, limit=PAGE, sort_dir="asc", **page
            )
            new = [each for each in listed if each.id not in self._seen]
            self._seen.update(each.id for each in new)
            self._fresh += new
            if len(new) < PAGE:
                return
            self._marker = new[-1].id

    def _look_at(self, resource: Resource) -> None:
        from openstack import exceptions

        followed = self.servers.get(resource.physical)
        try:
            with self._cloud.translated("its servers"):
                shown = self._cloud.sdk.compute.get_server(resource.physical)
        except HotplateError as error:
            if isinstance(error.__cause__, exceptions.NotFoundException):
                return
            raise
        if followed is None:
            followed = self.servers[resource.physical] = Followed(resource.physical)
        addresses = _addresses(shown)
        if not followed.name or followed.addresses != addresses:
            followed.name, followed.addresses = shown.name, addresses
            followed.flavor = shown.flavor.original_name or shown.flavor.id or ""
            followed.has_floating = any(map(_is_floating, _listed(shown)))
            self._boot(followed, resource, shown)
        self._status(followed, shown)
        # Console lines refer to deployments that Heat served before. Heat is asked each time: its
        # event of a deployment precedes the serving, and one of another stack has no event here.
        text = self._console(followed) if followed.status not in ("", "BUILD") else None
        self._serve(followed)
        lines = followed.console.new(text) if text is not None else []
        for line in lines:
            self._events.add(ConsoleLine(line), server=followed.id)
        if lines:
            self._write(followed, lines)

    def _boot(self, followed: Followed, resource: Resource, shown: Any) -> None:
        ports: list[dict[str, object]] = [
            {
                "network_id": network,
                "network": network,
                "cidr": "",
                "addresses": [str(each["addr"]) for each in addresses],
            }
            for network, addresses in (shown.addresses or {}).items()
        ]
        boot = ServerBoot(
            name=shown.name,
            stack=self._stack,
            resource=resource.name,
            ports=ports,
        )
        self._events.add(boot, server=followed.id)

    def _status(self, followed: Followed, shown: Any) -> None:
        """Emit a server's change of state."""
        status = str(shown.status)
        if status == followed.status:
            return
        before, followed.status = followed.status, status
        fault = (shown.fault or {}).get("message", "") if status == "ERROR" else ""
        followed.fault = str(fault)
        self._events.add(ServerState(status, followed.fault), server=followed.id)
        if status == "ACTIVE" and before in ("", "BUILD", "SHUTOFF", "ERROR"):
            self._events.add(PowerOn(), server=followed.id)
        elif status == "SHUTOFF":
            self._events.add(MachineExit(reason="guest-shutdown"), server=followed.id)

    def _serve(self, followed: Followed) -> None:
        """Emit the deployments that Heat serves to a server, when they have changed."""
        with self._cloud.translated("what Heat serves to a server"):
            configs = self._cloud.heat().software_deployments.metadata(server_id=followed.id)
        deployments = expected_deployments.deployments(configs, self._tree.label)
        if deployments != followed.deployments:
            followed.deployments = deployments
            expected.emit(self._events, followed.id, deployments)

    def _console(self, followed: Followed) -> str | None:
        """Return a server's console; many clouds have none, or not always."""
        try:
            with self._cloud.translated("the console of a server"):
                answer = self._cloud.sdk.compute.get_server_console_output(followed.id)
        except HotplateError:
            return None
        return str((answer or {}).get("output") or "")

    def _write(self, followed: Followed, lines: list[str]) -> None:
        path = self._directory / folder_name(followed.name) / "console.log"
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            with path.open("a") as stream:
                stream.write("".join(f"{line}\n" for line in lines))


def folder_name(server: str) -> str:
    """Return the name of a server's folder."""
    return file_name(server, longest=60, otherwise="server")


def _addresses(shown: Any) -> tuple[str, ...]:
    """Return a server's IPv4 addresses, then the others; a floating one first."""
    listed = sorted(
        _listed(shown), key=lambda each: (not _is_floating(each), each.get("version") != 4)
    )
    return tuple(str(each["addr"]) for each in listed)


def _listed(shown: Any) -> list[dict[str, Any]]:
    return [each for those in (shown.addresses or {}).values() for each in those]


def _is_floating(address: Mapping[str, object]) -> bool:
    return address.get("OS-EXT-IPS:type") == "floating"
