"""Classify events: polls, signals, markers of the guest's runner, lines of its console.

Stages, rules and pictures use it to interpret the facts of an event
(:mod:`hotplate.events.kinds`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from urllib.parse import unquote

from hotplate.events import console_patterns
from hotplate.events.event import Event
from hotplate.events.kinds import (
    GUEST_SERVICES,
    ConsoleLine,
    DiskError,
    GuestFlood,
    GuestPanic,
    MachineExit,
    ServiceRequest,
    StackResource,
)
from hotplate.text import clean

#: The resource type of Heat's events about a stack as a whole.
STACK_TYPE = "OS::Heat::Stack"

DEPLOYMENT_TYPES = frozenset(
    {
        "OS::Heat::SoftwareDeployment",
        "OS::Heat::StructuredDeployment",
        "OS::Heat::SoftwareComponent",
    }
)

# The runner's progress lines on the guest's console (hooks/55-heat-config).
_MARKER = re.compile(
    r"heat-config: "
    r"(?P<event>received|started|finished|signalled|signal-failed|interrupted|rejected)"
    r" id=(?P<id>\S*) group=(?P<group>\S*) name=(?P<name>\"(?:[^\"\\]|\\.)*\"|\S*)"
    r"(?: status=(?P<status>-?\d+))?(?: reason=(?P<reason>\"(?:[^\"\\]|\\.)*\"|.*))?"
)
#: The stage that each marker proves.
MARKED = {
    "received": "deployment delivered",
    "rejected": "deployment delivered",
    "started": "hook started",
    "finished": "hook finished",
    "signalled": "signal received",
}

# The kernel's time; the process id before a colon; systemd's count of restarts.
_TIME_AND_PROCESS = re.compile(
    r"^\[ *\d+\.\d+\] |(?<=\w)\[\d+\](?=:)|(?<=restart counter is at )\d+"
)

# Both wordings of systemd, see job_in(); the name of a unit may be cut short.
_JOB = re.compile(
    r"(?:\bA (?:start|stop) job is running for (.+?)|"
    r"\bJob (\S+?)(?:/(?:start|stop)|(?:\u2026|\.\.\.)\w*) running)"
    r" \((\d[^()]*/[^()]*)\)"
)


@dataclass(frozen=True)
class Marker:
    """One progress line that the guest's runner wrote on the console.

    :param event: ``received``, ``started``, ``finished``, ``signalled``, ``signal-failed``,
        ``interrupted`` or ``rejected``.
    :param status: the exit status, where the line carries one.
    """

    event: str
    id: str
    group: str
    name: str
    status: int | None = None
    reason: str = ""


def _unquoted(text: str | None) -> str:
    if not text:
        return ""
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text.strip('"')
    return text


def marker_in(text: str) -> Marker | None:
    """Return the runner's marker in a console line, or None."""
    match = _MARKER.search(clean(text))
    if not match:
        return None
    status = match["status"]
    return Marker(
        event=match["event"],
        id=match["id"],
        group=match["group"],
        name=_unquoted(match["name"]),
        status=int(status) if status is not None else None,
        reason=_unquoted(match["reason"]),
    )


def console_text(event: Event) -> str | None:
    """Return the cleaned text of a console line event, None for any other event."""
    line = ConsoleLine.of(event)
    return None if line is None else clean(line.text)


def undated(text: str) -> str:
    """Return a console line without its time and process id, which differ each time.

    >>> undated("[   30.14] setup[411]: cannot reach db")
    'setup: cannot reach db'
    """
    return _TIME_AND_PROCESS.sub("", text)


def is_waiting(event: Event) -> bool:
    """Return True for systemd's line that a job of the boot still runs."""
    text = console_text(event)
    return bool(text and job_in(text))


def job_in(text: str) -> tuple[str, str] | None:
    """Return the unit and the elapsed time in systemd's line about a running job, or None.

    Source: systemd's ``manager_print_jobs_in_progress()``; the wording changed in version 249.  A
    long name is cut short, with an ellipsis.
    """
    match = _JOB.search(text)
    return (match[1] or match[2], match[3]) if match else None


def marker(event: Event) -> Marker | None:
    """Return the runner's marker that an event carries, or None."""
    text = console_text(event)
    # The plain search first, because few lines have a marker.
    return marker_in(text) if text and "heat-config: " in text else None


def status(event: Event) -> int | None:
    """Return the HTTP status of a request event, None when it carries none."""
    asked = ServiceRequest.of(event)
    return asked.status if asked else None


def answered(event: Event) -> bool:
    """Return True when a request was answered with success (below 400)."""
    value = status(event)
    return value is None or 100 <= value < 400


def _method(event: Event) -> str:
    asked = ServiceRequest.of(event)
    return asked.method.upper() if asked else ""


def path(event: Event) -> str:
    """Return the path of a request event, percent-decoded."""
    asked = ServiceRequest.of(event)
    return unquote(asked.path or "") if asked else ""


def concerns(event: Event, server: str) -> bool:
    """Return True when an event is about a server, or about the stack as a whole.

    Requests of the host's own clients are about no server.
    """
    if is_by_host(event):
        return False
    return event.server == server or (event.source == "stack" and not event.server)


def is_by_host(event: Event) -> bool:
    """Return True for a request of one of the host's own clients."""
    asked = ServiceRequest.of(event)
    return asked is not None and asked.side == "host"


def is_request(event: Event) -> bool:
    """Return True for a request to one of the services that guests use."""
    return event.source in GUEST_SERVICES and event.kind in ("request", "signal")


def is_metadata_fetch(event: Event) -> bool:
    """Return True for a metadata request that does more than list the versions."""
    if event.source != "metadata" or event.kind != "request":
        return False
    asked = path(event)
    return any(part in asked for part in ("meta_data.json", "user_data", "meta-data", "user-data"))


def is_user_data(event: Event) -> bool:
    """Return True for a request for the server's user data."""
    return (
        event.source == "metadata"
        and event.kind == "request"
        and path(event).rstrip("/").endswith(("user_data", "user-data"))
    )


def is_loss(event: Event) -> bool:
    """Return True when a machine was lost: it ended and nobody had ended it."""
    ended = MachineExit.of(event)
    return ended is not None and ended.reason == "lost"


def is_stop(event: Event) -> bool:
    """Return True when QEMU stopped a guest because of a failed write to its disk."""
    error = DiskError.of(event)
    return error is not None and error.stopped


def is_panic(event: Event) -> bool:
    """Return True when a guest's kernel panicked and QEMU does not let it go on."""
    panic = GuestPanic.of(event)
    return panic is not None and panic.action != "run"


def hopeless(event: Event) -> str:
    """Return the reason why a guest cannot continue after an event, "" when it may."""
    if GuestPanic.of(event):
        return "the guest's kernel panicked"
    if (ended := MachineExit.of(event)) and ended.reason == "guest-panic":
        return "the guest's init ended with an error"
    if is_loss(event):
        return "the machine was lost"
    if is_stop(event):
        return "QEMU stopped the guest"
    if flood := GuestFlood.of(event):
        return flood.text
    pattern = console_patterns.match(console_text(event) or "")
    return f"the console shows: {pattern.reason}" if pattern and pattern.fatal else ""


def is_poll(event: Event) -> bool:
    """Return True when the agent asks for deployments, by any transport."""
    if event.kind == "poll" and event.source in GUEST_SERVICES:
        return True
    if (request := ServiceRequest.of(event)) is None:
        return False
    method, asked = _method(event), path(event)
    # As os_collect_config.cfn asks.
    if event.source == "cfn":
        action = request.action
        return action == "DescribeStackResource" or "Action=DescribeStackResource" in asked
    if event.source == "heat":
        # As os_collect_config.heat asks: the metadata of its resource.
        return method == "GET" and asked.partition("?")[0].endswith("/metadata")
    if event.source == "swift":
        # As os_collect_config.request asks: the object of a temporary URL.
        return method == "GET"
    if event.source == "zaqar":
        # As os_collect_config.zaqar asks: queue.pop() is a DELETE of messages.
        return method == "DELETE"
    return False


def is_signal(event: Event) -> bool:
    """Return True when a guest reports a result, by any transport or to a wait condition."""
    if event.source not in GUEST_SERVICES:
        return False
    if event.kind == "signal":
        return True
    if event.kind != "request":
        return False
    method, asked = _method(event), path(event).partition("?")[0]
    if event.source == "cfn":
        # CFN_SIGNAL is a POST; a handle of a wait condition takes a PUT.
        return (method == "POST" and "/signal/" in asked) or (
            method == "PUT" and "/waitcondition/" in asked
        )
    if event.source == "heat":
        # HEAT_SIGNAL, by Heat's own API.
        return method == "POST" and asked.endswith("/signal")
    if event.source == "swift":
        # TEMP_URL_SIGNAL: the object of a temporary URL is written.
        return method == "PUT"
    if event.source == "zaqar":
        # ZAQAR_SIGNAL: a message is posted.
        return method == "POST" and asked.endswith("/messages")
    return False


def resource_key(event: Event) -> tuple[str, str]:
    """Return (stack id, resource) of a stack event; names of stacks are not unique."""
    change = StackResource.of(event)
    return (change.stack_id, change.resource) if change else ("", "")


def deployment_ids(event: Event) -> list[str] | None:
    """Return the deployment ids in a poll's answer, None when the event does not list them."""
    value = event.detail.get("deployments")
    if isinstance(value, list):
        return [str(item) for item in value]
    return None


def is_signal_taken(event: Event) -> bool:
    """Return True for Heat's event that it accepted a signal for a deployment.

    Heat's event of the action SIGNAL has the reason "Signal: deployment ... succeeded" (or failed)
    when the signal counted, and another one when it was ignored.
    """
    change = StackResource.of(event)
    return (
        change is not None
        and change.type in DEPLOYMENT_TYPES
        and change.action == "SIGNAL"
        and change.reason.startswith("Signal: deployment")
    )


def is_failure(event: Event) -> bool:
    """Return True for Heat's event that a resource or a stack failed."""
    change = StackResource.of(event)
    return change is not None and change.status == "FAILED"


def is_complete_stack(event: Event) -> bool:
    """Return True for Heat's event that a stack is complete."""
    change = StackResource.of(event)
    return change is not None and (change.type, change.status) == (STACK_TYPE, "COMPLETE")


def is_wait_condition(event: Event) -> bool:
    """Return True for a stack event of a wait condition."""
    change = StackResource.of(event)
    return change is not None and change.type.endswith("::WaitCondition")


def describe(event: Event) -> str:
    """Return an event as one short line of evidence."""
    text = console_text(event)
    if text is not None:
        return f"console: {text.strip()}"
    if is_request(event):
        value = status(event)
        what = f"{_method(event)} {path(event).partition('?')[0]}".strip()
        request = ServiceRequest.of(event)
        action = f" ({request.action})" if request and request.action else ""
        return f"{event.source}: {what}{action} -> {value if value is not None else 'answered'}"
    if change := StackResource.of(event):
        reason = f": {change.reason}" if change.reason else ""
        name = change.resource or change.stack
        return f"stack: {name} {change.action}_{change.status}{reason}"
    facts = ", ".join(f"{key}={value}" for key, value in event.detail.items())
    return f"{event.source}: {event.kind}" + (f" {facts}" if facts else "")
