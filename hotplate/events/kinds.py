"""What an event says, by its kind: the names of its facts and their types.

Each kind has the facts of its class here; who emits another one, or reads one that no kind has, is
stopped by the type checker.
"""

from __future__ import annotations

from typing import TypedDict


class _Request(TypedDict, total=False):
    """``request``, of each service: what was asked of it; see also ``status``.

    :ivar side: ``guest`` or ``host``.
    :ivar action: Heat's CFN API's, and Zaqar's over a websocket.
    :ivar fault: of the planted fault that it met.
    """

    method: str
    path: str
    side: str
    seconds: float
    action: str
    StackName: str
    LogicalResourceId: str


class _Resource(TypedDict, total=False):
    """``stack/resource``: Heat did something with a resource; see also ``action``, ``status``.

    :ivar stack: the stack's name, and ``stack_id`` its id.
    :ivar label: the resource with those that it is nested in.
    """

    stack: str
    stack_id: str
    resource: str
    label: str
    type: str
    reason: str


class _Machine(TypedDict, total=False):
    """``machine``: ``power-on``, ``power-off``, ``link``, ``reset``, ``disk-error`` and ``exit``.

    :ivar by_guest: the guest asked for the reset.
    :ivar full: the host's disk is full; ``stopped``: the machine stands still for it.
    :ivar message: QEMU's last words, or a sentence on what happened.
    """

    pid: int
    restored: bool
    up: bool
    by_guest: bool
    full: bool
    stopped: bool
    message: str


class _Guest(TypedDict, total=False):
    """``console/line``, ``guest/probe`` and ``guest/journal``: what a guest wrote or answered."""

    text: str
    probe: str
    lines: list[str]


class _Harness(TypedDict, total=False):
    """``harness`` and ``nova``: what is expected of a server, and what keeps it from starting.

    :ivar parts: of its user data, with ``sources`` and ``handles``; see
        :mod:`hotplate.events.expected`, for ``deployments`` too.
    :ivar fault: the kind of a ``flood``; ``outcome``: whose fault a ``fault`` is.
    """

    name: str
    user_data_bytes: int
    parts: list[str]
    sources: list[str]
    handles: list[str]
    deployments: list[dict[str, str]]
    fault: str
    outcome: str


class Detail(_Request, _Resource, _Machine, _Guest, _Harness, total=False):
    """The facts of an event, of JSON types; which of them there are follows from its kind.

    :ivar status: of a request and a probe a number, of a resource Heat's word, of an ``exit`` that
        of QEMU.
    """

    status: int | str
