"""HTTP requests over kept connections, with proxies, TLS, redirects and limits.

Messages never contain the query of a URL. Proxies are chosen by heat_config.proxy, as
python-requests does.
"""

from __future__ import annotations

import socket
from collections import namedtuple

from heat_config import connection, http1, proxy
from heat_config.address import Target, redacted
from heat_config.deadline import Deadline
from heat_config.stream import BrokeOff, Stream, TooLong

from .problems import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from heat_config.http1 import Answer
    from heat_config.proxy import Proxy

    from .trust import Trust

#: Maximum bytes of one answer; Heat's own limit for requests is 1 MiB.
DOCUMENT_LIMIT = 16 << 20

REDIRECTS = 5
MOVED = (301, 302, 303, 307, 308)
AGAIN = ("GET", "HEAD")
KEPT = 8
#: Maximum seconds of a Retry-After that are honoured.
LONGEST_WAIT = 300.0

#: The accepted charsets and their codecs; some of Python's others are slow on hostile input.
CHARSETS = {
    "": "utf-8",
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "utf-8",
    "ascii": "utf-8",
    "iso-8859-1": "iso-8859-1",
    "latin-1": "iso-8859-1",
    "iso-8859-15": "iso-8859-15",
    "windows-1252": "windows-1252",
    "utf-16": "utf-16",
}

#: Headers that are not sent to another host on a redirect.
PRIVATE = ("x-auth-token", "authorization", "cookie", "client-id", "x-project-id")

Request = namedtuple("Request", "method headers body seconds limit ca_file verify follow")


class Client:
    """Make requests; *trust* is a Trust, *environ* names the proxies.

    Connections are kept open for later requests to the same server. users: see keystone.of_user().
    """

    def __init__(self, trust: Trust, environ: Mapping[str, str]) -> None:
        self._trust = trust
        self._environ = environ
        self._kept: dict[tuple[object, ...], Stream] = {}
        self.users: dict[tuple[Any, ...], Any] = {}

    def close(self) -> None:
        for stream in self._kept.values():
            stream.close()
        self._kept.clear()

    def ask(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        seconds: float = 10.0,
        limit: int = DOCUMENT_LIMIT,
        ca_file: str | None = None,
        verify: bool = True,
        follow: bool = True,
    ) -> Answer:
        """Return the Answer, whatever its status. Raises Unavailable.

        seconds: limit for one step, such as connecting; six times that for the whole request.
        follow: whether redirects are followed.
        """
        seconds = seconds if seconds and 0 < seconds < 1e6 else 10.0
        request = Request(
            method, dict(headers or {}), body, seconds, limit, ca_file, verify, follow
        )
        deadline = Deadline(seconds, 6 * seconds)
        for _ in range(REDIRECTS + 1):
            target = _target(url)
            answer = self._once(request, target, redacted(url), deadline)
            answer.url = url
            if not follow or answer.status not in MOVED or "location" not in answer.headers:
                return answer
            request, url = _redirected(request, url, answer)
        raise Unavailable(
            f'"{redacted(url)}" still redirects after {REDIRECTS} redirects', overloaded=True
        )

    def _once(self, request: Request, target: Target, shown: str, deadline: Deadline) -> Answer:
        try:
            way = proxy.of(target.scheme, target.host, target.named_port, self._environ)
        except ValueError:
            raise Unavailable(f"the value of {target.scheme}_proxy is not a URL") from None
        through = "" if way is None else f' through the proxy "{way.shown}"'
        try:
            return self._exchange(request, target, way, deadline)
        except TimeoutError:
            sentence = f'"{shown}" did not answer{through} within {request.seconds:g} seconds'
        except socket.timeout:  # another class than TimeoutError before Python 3.10
            sentence = f'"{shown}" did not answer{through} within {request.seconds:g} seconds'
        except BrokeOff:
            sentence = f'"{shown}" closed the connection early'
        except TooLong:
            sentence = f'the answer of "{shown}" is longer than {request.limit} bytes'
        except http1.Malformed:
            sentence = f'"{shown}" did not answer in HTTP{through}'
        except OSError as error:
            sentence = f'"{shown}" cannot be reached{through}: {_reason(error)}'
        except ValueError:
            raise Unavailable(
                f'"{shown}" cannot be requested: a header or the URL is invalid'
            ) from None
        raise Unavailable(sentence, overloaded=True)

    def _exchange(
        self, request: Request, target: Target, way: Proxy | None, deadline: Deadline
    ) -> Answer:
        # A connection is reused only for the same server by the same way with the same trust.
        place = (
            target.scheme,
            target.host,
            target.port,
            request.ca_file,
            request.verify,
            way and (way.scheme, way.host, way.port),
        )
        stream = self._kept.pop(place, None)
        if stream is not None and stream.holds():
            stream.close()  # the server has closed it, or sent data unasked
            stream = None
        if stream is not None:
            try:
                return self._on(stream, place, request, target, way, deadline)
            except OSError as error:
                # The server may close a kept connection at any time. The request is made again on
                # a new one, unless it may not be repeated, or a byte of the answer has come.
                if not _is_closed(error) or stream.received or request.method not in AGAIN:
                    raise
        stream = Stream(self._connect(request, target, way, deadline))
        return self._on(stream, place, request, target, way, deadline)

    def _on(
        self,
        stream: Stream,
        place: tuple[object, ...],
        request: Request,
        target: Target,
        way: Proxy | None,
        deadline: Deadline,
    ) -> Answer:
        """Make one exchange on *stream*, and keep it if it can be reused."""
        headers = {
            "Host": target.authority,
            "User-Agent": "os-collect-config",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **request.headers,
        }
        path = target.path
        if way is not None and target.scheme == "http":
            # A proxy for plain HTTP gets the whole URL (RFC 9112 3.2.2).
            path = target.whole
            headers.update(way.headers())
        # Also for a POST without a body (RFC 9110 8.6).
        if request.body or request.method not in ("GET", "HEAD", "DELETE"):
            headers["Content-Length"] = str(len(request.body))
        stream.received = 0
        try:
            stream.write(http1.head(request.method, path, headers, request.body), deadline)
            answer = http1.read_answer(stream, request.method, deadline, request.limit)
        except BaseException:
            stream.close()
            raise
        if answer.keep and len(self._kept) < KEPT:
            self._kept[place] = stream
        else:
            stream.close()
        return answer

    def _connect(
        self, request: Request, target: Target, way: Proxy | None, deadline: Deadline
    ) -> socket.socket:
        def encrypted(made: socket.socket, name: str, is_proxy: bool) -> socket.socket:
            ca_file, verify = (None, True) if is_proxy else (request.ca_file, request.verify)
            context = self._trust.context(ca_file, verify=verify)
            made.settimeout(deadline.left())
            return context.wrap_socket(made, server_hostname=name)

        try:
            return connection.reach(target, way, deadline, encrypted)
        except connection.UnsupportedProxy as error:
            raise Unavailable(
                f'the proxy "{error.way.shown}" is not supported; use one that starts with http://'
            ) from None
        except connection.ProxyRefused as error:
            raise _refused(target, error) from None

    def open_stream(
        self, target: Target, *, seconds: float, ca_file: str | None = None, verify: bool = True
    ) -> Stream:
        """Return a new Stream connected to *target*, a Target. Raises Unavailable, OSError."""
        try:
            way = proxy.of(target.scheme, target.host, target.named_port, self._environ)
        except ValueError:
            way = None
        request = Request("GET", {}, b"", seconds, 0, ca_file, verify, False)
        deadline = Deadline(seconds, 6 * seconds)
        if way is None or target.scheme == "https":
            return Stream(self._connect(request, target, way, deadline))
        # A websocket needs a tunnel, even without TLS.
        made = connection.connect(way.host, way.port, deadline)
        try:
            connection.tunnel(made, target, way, deadline)
        except connection.ProxyRefused as error:
            made.close()
            raise _refused(target, error) from None
        except BaseException:
            made.close()
            raise
        return Stream(made)


def accept(answer: Answer) -> Answer:
    """Return *answer* if its status is below 400. Raises Unavailable otherwise."""
    if answer.status < 400:
        return answer
    overloaded = answer.status == 429 or answer.status >= 500
    wait = None
    text = answer.headers.get("retry-after", "")
    # The other form of Retry-After, a date, would need clocks that agree.
    if overloaded and text.isascii() and text.isdigit():
        wait = min(float(text), LONGEST_WAIT)
    sentence = f'"{redacted(answer.url)}" answered {answer.status}'
    raise Unavailable(sentence, overloaded=overloaded, wait=wait)


def text_of(answer: Answer) -> str:
    """Return the body as text, in the charset of its Content-Type or in UTF-8.

    Raises Unavailable.
    """
    kind = answer.headers.get("content-type", "").lower()
    charset = kind.partition("charset=")[2].partition(";")[0].strip("\"' ")
    try:
        return answer.body.decode(CHARSETS[charset])
    except (KeyError, ValueError):
        raise Unavailable(
            f'the answer of "{redacted(answer.url)}" is not text in a known charset'
        ) from None


def _refused(target: Target, error: connection.ProxyRefused) -> Unavailable:
    return Unavailable(
        f'the proxy "{error.way.shown}" answered {error.status} to CONNECT "{target.connect_to}"',
        overloaded=error.status >= 500,
    )


def _target(url: str) -> Target:
    try:
        return Target(url)
    except ValueError:
        raise Unavailable(f'"{redacted(url)}" is not a valid URL') from None


def _redirected(request: Request, url: str, answer: Answer) -> tuple[Request, str]:
    """Return the next request and its URL. Raises Unavailable.

    Secrets are not sent to another host: headers, the body, the query of a signed URL.
    """
    from urllib.parse import parse_qsl, urljoin, urlsplit

    shown = redacted(url)
    if request.method not in AGAIN:
        raise Unavailable(f'"{shown}" redirects a {request.method} request')
    try:
        other = urljoin(url, answer.headers["location"])
        before, after = Target(url), Target(other)
        # A shorter value may be the same in both URLs by chance.
        values = [value for _, value in parse_qsl(urlsplit(url).query) if len(value) >= 8]
        passed = {value for _, value in parse_qsl(urlsplit(other).query)}
    except ValueError:
        raise Unavailable(f'"{shown}" redirects to an invalid URL') from None
    if before.scheme == "https" and after.scheme == "http":
        raise Unavailable(f'"{shown}" redirects from HTTPS to HTTP')
    if _is_same_place(before, after):
        return request, other
    if any(value in passed for value in values):
        raise Unavailable(f'"{shown}" redirects its signature to another host')
    headers = {name: text for name, text in request.headers.items() if name.lower() not in PRIVATE}
    # A source's own CA file, and its permission not to verify, are for its own server only.
    return request._replace(headers=headers, ca_file=None, verify=True), other


def _is_same_place(before: Target, after: Target) -> bool:
    if before.host.lower() != after.host.lower():
        return False
    # HTTPS of the same server, both at their default ports.
    upgraded = (before.scheme, before.port, after.scheme, after.port) == ("http", 80, "https", 443)
    return before.port == after.port or upgraded


def _is_closed(error: BaseException) -> bool:
    names = ("SSLEOFError", "SSLZeroReturnError")  # without importing ssl
    return isinstance(error, (BrokeOff, ConnectionError)) or type(error).__name__ in names


def _reason(error: OSError) -> str:
    name = type(error).__name__
    if name == "SSLCertVerificationError":
        words = getattr(error, "verify_message", "") or "it cannot be verified"
        return f"its certificate is not trusted ({words})"
    if name == "gaierror":
        return f"its host cannot be found ({error.strerror})"
    return error.strerror or name
