"""Namespaces of our own without any right on the host, for root and for ordinary users.

Root gives up its user id on the way: the processes of a segment may configure that segment's
network and nothing else, and the same code runs for all users.

Source: user_namespaces(7), capabilities(7).
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from hotplate.children.reaper import (
    CLONE_NEWNET,
    CLONE_NEWUSER,
    checked,
    libc,
    unshare_as_ourselves,
)

PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
_CAPABILITIES_VERSION_3 = 0x20080522
CAP_NET_BIND_SERVICE = 10
CAP_NET_ADMIN = 12
CAP_NET_RAW = 13
FOR_CHILDREN = (CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW)


def enter_namespaces(user: int) -> None:
    """Enter a user and a network namespace, in which the children may configure the network.

    :param user: the user that root becomes for good; -1 to stay the same user.
    :raises OSError: when the host does not allow it.
    """
    if user < 0:
        unshare_as_ourselves()
    else:
        _unshare_mapped(user)
        checked(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl")
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _keep_for_children()


def _unshare_mapped(user: int) -> None:
    """Leave root's namespaces for ones in which only that user exists.

    Only a process that is still root outside may write the map: a child of ours, which waits until
    we are inside.
    """
    # Root's groups would still open the host's files.
    os.setgroups([])
    inside, entered = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # Our copy of the write end would keep the end of file away.
            os.close(entered)
            # End of file instead of a byte: the parent could not enter.
            if os.read(inside, 1):
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{parent}/{name}").write_text(f"{user} {user} 1")
                status = 0
        finally:
            os._exit(status)
    os.close(inside)
    try:
        checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET), "unshare of user and network")
        os.write(entered, b"x")
    finally:
        os.close(entered)
        status = os.waitpid(child, 0)[1]
    if status:
        raise PermissionError(1, "the user of the namespace could not be set")


def _keep_for_children() -> None:
    """Let our child programs keep the rights on the network, and no others."""
    wanted = sum(1 << each for each in FOR_CHILDREN)
    # Version and process, 0 for ourselves; then two structures for 64 bits, each with the
    # effective, permitted and inheritable set (capget(2)).
    header = struct.pack("Ii", _CAPABILITIES_VERSION_3, 0)
    current = ctypes.create_string_buffer(24)
    checked(libc.capget(header, current), "capget")
    permitted = struct.unpack("6I", current.raw)[1::3]
    sets = (permitted[0], permitted[0], wanted, permitted[1], permitted[1], 0)
    checked(libc.capset(header, struct.pack("6I", *sets)), "capset")
    for each in FOR_CHILDREN:
        # Only a capability that is permitted and inheritable can be ambient, and so survive exec.
        checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, each, 0, 0), "prctl")
