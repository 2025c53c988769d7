"""One HTTP request of a signal: directly or through a proxy, with or without TLS."""

import socket
import time

from . import connection, http1, proxy
from .address import Target, redacted
from .deadline import Deadline
from .refusal import NotAccepted
from .stream import BrokeOff, Stream, TooLong

ANSWER_LIMIT = 1 << 20
"""Bytes of an answer that are read; the rest does not concern the signal."""


def send(method, url, data, headers=None, *, seconds, ca_file):
    """Make one request and return its http1.Answer, whatever its status. Raises NotAccepted.

    data: bytes of JSON. seconds: how long it may take. ca_file: a path, None for the system's
    certificates.
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
        "Accept-Encoding": "identity",
        "Content-Length": str(len(data)),
        "Content-Type": "application/json",
        "Connection": "close",
        **(headers or {}),
    }
    path = target.path
    if way is not None and target.scheme == "http":
        path = target.whole
        headers.update(way.headers())
    through = "" if way is None else ' through the proxy "%s"' % way.shown
    try:
        message = http1.head(method, path, headers, data)
        return _exchange(message, method, target, way, Deadline(seconds, seconds), ca_file)
    except BrokeOff as error:
        raise NotAccepted(_cut_short(shown, error, through), again=True) from None
    except (http1.Malformed, TooLong):
        raise NotAccepted('"%s" did not answer in HTTP%s' % (shown, through), again=True) from None
    except OSError as error:
        raise _unreachable(shown, error, seconds, through) from None
    except ValueError:
        raise NotAccepted(
            'no request to "%s" can be made: a header or the URL is malformed' % shown
        ) from None


def skew(answer):
    """Return how many seconds this machine's clock is ahead of the server's, or None."""
    from email.utils import mktime_tz, parsedate_tz

    try:
        return time.time() - mktime_tz(parsedate_tz(answer.headers["date"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _exchange(message, method, target, way, deadline, ca_file):
    """Send *message* on a connection of its own, and return the Answer."""
    stream = Stream(_connected(target, way, deadline, ca_file))
    try:
        stream.write(message, deadline)
        return http1.read_answer(stream, method, deadline, ANSWER_LIMIT, cut=True)
    finally:
        stream.close()


def _connected(target, way, deadline, ca_file):
    """Return a socket connected to *target*, over the proxy *way* if there is one."""

    def encrypted(made, name, _is_proxy):
        made.settimeout(deadline.left())
        return _context(ca_file).wrap_socket(made, server_hostname=name)

    try:
        return connection.reach(target, way, deadline, encrypted)
    except connection.UnsupportedProxy:
        raise NotAccepted(
            'the proxy "%s" is of a kind that signals cannot use; name one that begins with '
            "http://" % way.shown
        ) from None
    except connection.ProxyRefused as error:
        raise NotAccepted(
            'the proxy "%s" answered %d when asked to connect to "%s"'
            % (way.shown, error.status, target.connect_to),
            again=error.status >= 500,
        ) from None


def _context(ca_file):
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError):
        raise NotAccepted('the CA file "%s" cannot be read' % ca_file) from None


def _cut_short(shown, error, through):
    if error.started:
        return 'the answer of "%s" was cut short' % shown
    return '"%s" closed the connection%s without an answer' % (shown, through)


def _unreachable(shown, error, seconds, through):
    reason = error.strerror or type(error).__name__
    name = type(error).__name__
    if isinstance(error, (TimeoutError, socket.timeout)):  # the same class since Python 3.10
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
