"""One HTTP request of a signal: directly or through a proxy, with or without TLS."""

import http.client
import time

from . import proxy
from .address import Target, redacted
from .refusal import NotAccepted

ANSWER_LIMIT = 1 << 20


class Answer:
    """An HTTP answer; skew: seconds that this machine's clock is ahead of the server's, or None."""

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def skew(self):
        from email.utils import mktime_tz, parsedate_tz

        try:
            return time.time() - mktime_tz(parsedate_tz(self.headers["Date"]))
        except (TypeError, ValueError, OverflowError):
            return None


def send(method, url, data, headers=None, *, seconds, ca_file):
    """Make one request and return its Answer, whatever its status. Raises NotAccepted.

    data: bytes of JSON. seconds: how long one step of it may take. ca_file: a path, None for the
    system's certificates.
    """
    shown = redacted(url)
    try:
        target = Target(url)
    except ValueError:
        raise NotAccepted('"%s" is not a URL that a signal can go to' % shown, final=True) from None
    try:
        way = proxy.of(target.scheme, target.host, target.named_port)
    except ValueError:
        raise NotAccepted("the %s_proxy of the agent is not a URL" % target.scheme) from None
    headers = {
        "Host": target.authority,
        "Content-Type": "application/json",
        "Connection": "close",
        **(headers or {}),
    }
    through = "" if way is None else ' through the proxy "%s"' % way.shown
    connection = http.client.HTTPConnection(target.name, target.port)
    try:
        connection.sock = _connect(target, way, seconds, ca_file)
        path = target.path
        if way is not None and target.scheme == "http":
            path = target.whole
            headers.update(way.headers())
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read(ANSWER_LIMIT))
        # read() with a size does not report that the answer was cut short.
        if len(answer.body) < ANSWER_LIMIT and response.length:
            raise http.client.IncompleteRead(answer.body)
        return answer
    except http.client.IncompleteRead:
        raise NotAccepted('the answer of "%s" was cut short' % shown, again=True) from None
    except http.client.HTTPException as error:
        raise NotAccepted(
            '"%s" did not answer in HTTP%s (%s)' % (shown, through, type(error).__name__),
            again=True,
        ) from None
    except OSError as error:
        raise _unreachable(shown, error, seconds, through) from None
    except ValueError:
        raise NotAccepted(
            'no request to "%s" can be made: a header or the URL is malformed' % shown
        ) from None
    finally:
        connection.close()


def _connect(target, way, seconds, ca_file):
    """Return a connected socket to *target*, over the proxy *way* if there is one."""
    import socket

    if way is not None and way.scheme != "http" and (way.scheme, target.scheme) != PLAIN_OVER_TLS:
        raise NotAccepted(
            'the proxy "%s" is of a kind that signals cannot use; name one that begins with '
            "http://" % way.shown
        )
    first = target if way is None else way
    made = socket.create_connection((first.host, first.port), timeout=seconds)
    try:
        if way is not None and way.scheme == "https":
            made = _encrypted(made, way.host, ca_file)
        if target.scheme == "https":
            if way is not None:
                _tunnel(made, target, way)
            made = _encrypted(made, target.name, ca_file)
    except BaseException:
        made.close()
        raise
    return made


PLAIN_OVER_TLS = ("https", "http")
"""Through a proxy that is itself reached by HTTPS go plain requests only, not TLS in TLS."""


def _tunnel(made, target, way):
    """Have the proxy connect *made* to *target* (CONNECT, RFC 9110 9.3.6)."""
    lines = ["CONNECT %s HTTP/1.1" % target.connect_to, "Host: " + target.connect_to]
    lines += ["%s: %s" % item for item in way.headers().items()]
    made.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
    response = http.client.HTTPResponse(made, method="CONNECT")
    try:
        response.begin()
    finally:
        response.close()
    if not 200 <= response.status < 300:
        raise NotAccepted(
            'the proxy "%s" answered %d when asked to connect to "%s"'
            % (way.shown, response.status, target.connect_to),
            again=response.status >= 500,
        )


def _encrypted(made, name, ca_file):
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError):
        raise NotAccepted('the CA file "%s" cannot be read' % ca_file) from None
    return context.wrap_socket(made, server_hostname=name)


def _unreachable(shown, error, seconds, through):
    import socket

    reason = error.strerror or type(error).__name__
    name = type(error).__name__
    if isinstance(error, (TimeoutError, socket.timeout)):  # one and the same from Python 3.10 on
        return NotAccepted(
            '"%s" did not answer%s within %g seconds' % (shown, through, seconds), dead=True
        )
    if name == "SSLCertVerificationError":
        return NotAccepted(
            '"%s" shows a certificate that is not trusted (%s); name its CA as ca_file in '
            "/etc/heat-config.conf" % (shown, getattr(error, "verify_message", reason))
        )
    if name == "gaierror":
        what = through.strip().replace("through the proxy", "the proxy") or 'the host of "%s"' % (
            shown
        )
        return NotAccepted("%s cannot be found: %s" % (what, reason), dead=True)
    return NotAccepted('"%s" cannot be reached%s: %s' % (shown, through, reason), again=True)
