"""HTTP for the ``cfn-*`` commands: bounded in time, with retries, never showing a signed URL."""

import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any, Callable, Optional

from heat_config import proxy, settings

from heat_cfn.problems import CfnError

TIMEOUT = 60  # seconds without a byte
ATTEMPTS = 8
LONGEST_PAUSE = 30  # seconds; 1 + 2 + 4 + 8 + 16 + 30 + 30 between eight attempts
TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)


class Refused(CfnError):
    """The server answered with a status other than success."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Unusable(CfnError):
    """This machine is misconfigured; trying again does not help."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: a signature is valid for one address, and Heat does not redirect."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


class _Proxies(urllib.request.ProxyHandler):
    """The proxies of the environment, chosen as the runner does for a deployment's signal."""

    def __init__(self) -> None:
        super().__init__({})

    def http_open(self, request: urllib.request.Request) -> None:
        """Send ``request`` to its proxy, if it has one."""
        parts = urllib.parse.urlsplit(request.full_url)
        try:
            way = proxy.of(parts.scheme, parts.hostname or "", parts.port)
        except ValueError:
            raise Unusable("the %s_proxy of the environment is not a URL" % parts.scheme) from None
        if way is None:
            return
        if way.scheme != "http":
            raise Unusable('the proxy "%s" must be one that begins with http://' % way.shown)
        for name, value in way.headers().items():
            request.add_header(name, value)
        host = "[%s]" % way.host if ":" in way.host else way.host
        request.set_proxy("%s:%d" % (host, way.port), "http")

    https_open = http_open


def shown(url: str) -> str:
    """Return the URL for messages: no user, no password, no query (which may sign)."""
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
        port = parts.port
    except ValueError:
        return "(an address that cannot be read)"
    if ":" in host:
        host = "[%s]" % host
    place = host + (":%d" % port if port else "")
    return urllib.parse.urlunsplit((parts.scheme, place, parts.path, "", ""))


def check(url: Any, where: str, schemes: Any = ("http", "https")) -> str:
    """Return ``url`` if it can be fetched, else raise CfnError naming ``where``."""
    if isinstance(url, str) and url.isprintable() and " " not in url:
        try:
            parts = urllib.parse.urlsplit(url)
            port_is_fine = parts.port is None or parts.port > 0
        except ValueError:
            port_is_fine = False
        if port_is_fine and parts.scheme in schemes and (parts.netloc or parts.scheme == "file"):
            return url
    wanted = ", ".join(scheme + "://" for scheme in schemes)
    raise CfnError('"%s" must be an address that begins with one of %s' % (where, wanted))


def request(url: str, verb: str = "GET", body: Optional[bytes] = None) -> urllib.request.Request:
    """Return a request; a body is JSON, for a signature covers the parameters of a form."""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    return urllib.request.Request(url, body, headers, method=verb)  # noqa: S310 - check() did


def open_url(
    request: urllib.request.Request,
    *,
    insecure: bool = False,
    redirects: bool = False,
    timeout: float = TIMEOUT,
    direct: bool = False,
) -> Any:
    """Open a request and return urllib's response.

    It uses the environment's proxy for the address, and verifies servers by the system's
    certificates, or by ``ca_file`` of /etc/heat-config.conf, as the runner does.

    :param insecure: do not verify the server's certificate.
    :param redirects: follow them; not for a signed address.
    :param timeout: seconds without a byte.
    :param direct: use no proxy.

    :raises Refused: for an answer of 300 and above.
    :raises CfnError: when there is no answer.
    """
    handlers: list = [urllib.request.ProxyHandler({}) if direct else _Proxies()]
    if not redirects:
        handlers.append(_NoRedirect())
    if request.full_url.startswith("https:"):
        import ssl  # costs a fifth of a second on a slow guest

        authorities = settings.Settings().ca_file
        try:
            context = ssl.create_default_context(cafile=authorities)
        except (OSError, ssl.SSLError):
            raise Unusable('the CA file "%s" cannot be read' % authorities) from None
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        handlers.append(urllib.request.HTTPSHandler(context=context))
    name = shown(request.full_url)
    try:
        return urllib.request.build_opener(*handlers).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        raise Refused('"%s" answered %d' % (name, error.code), error.code) from None
    except (OSError, HTTPException) as error:
        raise CfnError('"%s" cannot be reached: %s' % (name, reason(error))) from None


def reason(error: BaseException) -> str:
    """Return the reason of a failed connection, without the address that urllib adds."""
    inner = getattr(error, "reason", error)
    if isinstance(inner, socket.timeout):
        return "no answer in time"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return type(inner).__name__


def patiently(
    action: Callable[[], Any],
    attempts: int = ATTEMPTS,
    say: Optional[Callable[[str], None]] = None,
) -> Any:
    """Return the result of ``action()``; retry while the server is unreachable or overloaded.

    :param attempts: how often at most; the pauses double from one second up to thirty.
    :raises CfnError: that of the last attempt, or the first that a retry cannot fix.
    """
    pause = 1
    for attempt in range(1, attempts + 1):
        try:
            return action()
        except CfnError as error:
            if attempt == attempts or not _passes(error):
                raise
            if say:
                say("%s; trying again in %d s" % (error, pause))
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    raise CfnError("no attempt was allowed")


def _passes(error: CfnError) -> bool:
    """Return whether another attempt may succeed."""
    if isinstance(error, Refused):
        return error.status in TRY_AGAIN
    return not isinstance(error, Unusable)
