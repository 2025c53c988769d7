"""One HTTP request: directly or through a proxy, with or without TLS."""

from __future__ import annotations

import socket
import time

from . import connection, http1, proxy
from .address import Target, redacted
from .deadline import Deadline
from .refusal import Misconfigured, NotAccepted
from .stream import BrokeOff, Stream, TooLong

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any

    from .http1 import Answer
    from .proxy import Proxy

#: Bytes of an answer that are read; the rest does not concern a signal.
ANSWER_LIMIT = 1 << 20


class Trust:
    """The certificates for TLS: those of *ca_file*, by default the system's; none if not *verify*.

    Raises Misconfigured for a file that cannot be read, not before a connection needs it.
    """

    def __init__(self, ca_file: str | None = None, *, verify: bool = True) -> None:
        self._ca_file = ca_file
        self._verify = verify

    def context(self) -> ssl.SSLContext:
        """Return a TLS context."""
        import ssl  # costs a fifth of a second on a slow guest

        try:
            context = ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ssl.SSLError):
            raise Misconfigured(f'the CA file "{self._ca_file}" cannot be read') from None
        # In this order: Python refuses CERT_NONE while the host name is checked.
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def send(
    method: str,
    url: object,
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
    *,
    deadline: Deadline,
    trust: Trust,
    direct: bool = False,
    limit: int = ANSWER_LIMIT,
    sink: Callable[[bytes], Any] | None = None,
) -> Answer:
    """Make one request and return its Answer, whatever its status. Raises NotAccepted.

    data: bytes of JSON, None for a request without a body. direct: use no proxy. limit: bytes of
    the answer's body that are read. sink: as in http1.read_answer.
    """
    shown = redacted(url)
    try:
        target = Target(url)
    except ValueError:
        raise Misconfigured(
            f'"{shown}" is not a URL that a request can go to', final=True
        ) from None
    try:
        way = None if direct else proxy.of(target.scheme, target.host, target.named_port)
    except ValueError:
        raise Misconfigured(f"the {target.scheme}_proxy of the environment is not a URL") from None
    # Without "identity", a server may compress.
    fields = {"Host": target.authority, "Accept-Encoding": "identity"}
    if data is not None:
        fields.update({"Content-Length": str(len(data)), "Content-Type": "application/json"})
    # One request for each connection: the next signal may be hours away.
    fields.update({"Connection": "close", **(headers or {})})
    path = target.path
    if way is not None and target.scheme == "http":
        # A proxy needs the whole URL (RFC 9112 3.2.2). For https the tunnel was made with CONNECT,
        # and the credentials for the proxy must not reach the target.
        path = target.whole
        fields.update(way.headers())
    through = "" if way is None else f' through the proxy "{way.shown}"'
    try:
        message = http1.head(method, path, fields, data or b"")
        stream = Stream(_connected(target, way, deadline, trust))
        try:
            stream.write(message, deadline)
            return http1.read_answer(stream, method, deadline, limit, cut=True, sink=sink)
        finally:
            stream.close()
    except BrokeOff as error:
        sentence = f'the answer of "{shown}" was cut short'
        if not error.started:
            sentence = f'"{shown}" closed the connection{through} without an answer'
        raise NotAccepted(sentence, again=True) from None
    except (http1.Malformed, TooLong):
        raise NotAccepted(f'"{shown}" did not answer in HTTP{through}', again=True) from None
    except OSError as error:
        raise _unreachable(shown, error, deadline.step, through) from None
    except ValueError:
        raise Misconfigured(
            f'no request to "{shown}" can be made: a header or the URL is malformed'
        ) from None


def skew(answer: Answer) -> float | None:
    """Return how many seconds this machine's clock is ahead of the server's, or None."""
    from email.utils import mktime_tz, parsedate_tz

    parsed = parsedate_tz(answer.headers.get("date", ""))
    try:
        return None if parsed is None else time.time() - mktime_tz(parsed)
    except (TypeError, ValueError, OverflowError):
        return None


def _connected(
    target: Target, way: Proxy | None, deadline: Deadline, trust: Trust
) -> socket.socket:
    """Return a socket connected to *target*, over the proxy *way* if there is one."""

    def encrypted(made: socket.socket, name: str, _is_proxy: bool) -> socket.socket:
        context = trust.context()
        made.settimeout(deadline.left())
        return context.wrap_socket(made, server_hostname=name)

    try:
        return connection.reach(target, way, deadline, encrypted)
    except connection.UnsupportedProxy as error:
        raise Misconfigured(
            f'the proxy "{error.way.shown}" is of a kind that is not supported; name one that '
            "begins with http://"
        ) from None
    except connection.ProxyRefused as error:
        raise NotAccepted(
            f'the proxy "{error.way.shown}" answered {error.status} when asked to connect to '
            f'"{target.connect_to}"',
            again=error.status >= 500,
        ) from None


def _unreachable(shown: str, error: OSError, seconds: float, through: str) -> NotAccepted:
    name = type(error).__name__
    reason = error.strerror or name
    if isinstance(error, (TimeoutError, socket.timeout)):  # the same class since Python 3.10
        return NotAccepted(
            f'"{shown}" did not answer{through} within {seconds:g} seconds', dead=True
        )
    # By name: the ssl module is not loaded for a request without TLS.
    if name == "SSLCertVerificationError":
        reason = getattr(error, "verify_message", reason)
        return NotAccepted(
            f'"{shown}" shows a certificate that is not trusted ({reason}); name its CA as ca_file '
            "in /etc/heat-config.conf"
        )
    if name == "gaierror":
        host = through.strip().replace("through the proxy", "the proxy") or f'the host of "{shown}"'
        return NotAccepted(f"{host} cannot be found: {reason}", dead=True)
    return NotAccepted(f'"{shown}" cannot be reached{through}: {reason}', again=True)
