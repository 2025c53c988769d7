"""A connection to a server, directly or through a proxy."""

from __future__ import annotations

import socket

from . import http1
from .stream import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .address import Target
    from .deadline import Deadline
    from .proxy import Proxy

#: The supported schemes of proxy and target; TLS within TLS is not supported.
WAYS = {("http", "http"), ("http", "https"), ("https", "http")}


class UnsupportedProxy(Exception):
    """The target cannot be reached through this kind of proxy, *way*."""

    def __init__(self, way: Proxy) -> None:
        super().__init__(way)
        self.way = way


class ProxyRefused(Exception):
    """The proxy *way* answered *status* when asked to connect to the target."""

    def __init__(self, way: Proxy, status: int) -> None:
        super().__init__(way, status)
        self.way = way
        self.status = status


def reach(
    target: Target,
    way: Proxy | None,
    deadline: Deadline,
    encrypted: Callable[[socket.socket, str, bool], socket.socket],
) -> socket.socket:
    """Return a socket to *target*, over the proxy *way* if there is one, with TLS for HTTPS.

    encrypted: returns the TLS socket over a socket; it is passed the socket, the name that the
    certificate must have, and whether that is the proxy's. Raises UnsupportedProxy,
    ProxyRefused, http1.Malformed, OSError.
    """
    if way is not None and (way.scheme, target.scheme) not in WAYS:
        raise UnsupportedProxy(way)
    first = target if way is None else way
    made = connect(first.host, first.port, deadline)
    try:
        # TLS to the proxy itself, under the proxy's name.
        if way is not None and way.scheme == "https":
            made = encrypted(made, way.host, True)
        if target.scheme == "https":
            # For http the proxy is sent the whole URL instead (request.send), without a tunnel.
            if way is not None:
                tunnel(made, target, way, deadline)
            made = encrypted(made, target.name, False)
    except BaseException:
        made.close()
        raise
    return made


def connect(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Return a socket connected to one of the host's addresses. Raises OSError."""
    # For a str, Python loads IDNA's tables; these bytes are the same as its result.
    name = host.encode("ascii") if host.isascii() else host
    addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError("the host has no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        made = socket.socket(family, kind, protocol)
        try:
            # Leave time for the next address when this one never answers.
            made.settimeout(deadline.left() / min(len(addresses) - tried, 2))
            made.connect(address)
            # TLS 1.3 sends the end of its handshake and then the request: Nagle's algorithm would
            # hold back the second until the first is acknowledged.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return made
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
    raise failure


def tunnel(made: socket.socket, target: Target, way: Proxy, deadline: Deadline) -> None:
    """Make the proxy connect *made* to *target* (CONNECT, RFC 9110 9.3.6).

    Raises ProxyRefused, http1.Malformed, OSError.
    """
    # Its buffer is dropped with it. That loses nothing: a TLS server sends no byte before the
    # client's hello.
    stream = Stream(made)
    headers = {"Host": target.connect_to, **way.headers()}
    stream.write(http1.head("CONNECT", target.connect_to, headers), deadline)
    # After a 2xx there is no body: the next byte belongs to the target.
    answer = http1.read_answer(stream, "CONNECT", deadline, 0)
    if not 200 <= answer.status < 300:
        raise ProxyRefused(way, answer.status)
