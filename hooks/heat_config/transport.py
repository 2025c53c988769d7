"""Signals: one request (or two, with a token) that reports to Heat how a deployment ended.

CFN_SIGNAL posts to a signed URL, TEMP_URL_SIGNAL puts to one, HEAT_SIGNAL posts to Heat's API and
ZAQAR_SIGNAL to a queue (v2), the last two with a Keystone v3 token; NO_SIGNAL sends nothing. The
inputs that select one are set in Heat's engine/resources/openstack/heat/software_deployment.py.

Heat ignores a signal for a deployment that has ended, so sending one twice is harmless.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

from . import process
from .refusal import NotAccepted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from .http1 import Answer
    from .settings import Settings

#: Bytes of a signal; Heat's APIs take 1 MiB (max_json_body_size).
BODY_LIMIT = 950_000

#: The same for a queue; Zaqar takes 256 KiB (max_messages_post_size) with the wrapping.
QUEUE_LIMIT = 240_000

#: Answers of Heat, and of Swift, that no further try changes.
GONE = (404, 410)

#: Answers that may change: a clock is set right, Keystone gets its credentials back.
REFUSED = (401, 403)

ATTEMPTS = 3
#: Seconds after which a cloud may refuse a signed URL (keystone.conf, [credential] auth_ttl).
AGED = 15 * 60

#: The time of a URL's signature, as Heat writes it in heat/engine/resources/signal_responder.py.
_STAMP = re.compile(
    "[?&]Timestamp=([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2})(?::|%3A)([0-9]{2})(?::|%3A)"
    "([0-9]{2})Z(?:[&#]|$)",
    re.IGNORECASE,
)

_URL_KINDS = ("CFN_SIGNAL", "TEMP_URL_SIGNAL")


def kind(inputs: dict[str, Any]) -> str | None:
    """Return the name of the transport that *inputs* ask for, None when they ask for none."""
    # In the order of heat-agents' notifier: a URL first. A queue comes before deploy_auth_url,
    # which it needs as well.
    if inputs.get("deploy_signal_id"):
        return "TEMP_URL_SIGNAL" if inputs.get("deploy_signal_verb") == "PUT" else "CFN_SIGNAL"
    if inputs.get("deploy_queue_id"):
        return "ZAQAR_SIGNAL"
    if inputs.get("deploy_auth_url"):
        return "HEAT_SIGNAL"
    if inputs.get("deploy_signal_transport") == "NO_SIGNAL":
        return "NO_SIGNAL"
    return None


def limit(inputs: dict[str, Any]) -> int:
    """Return how many bytes the signal's body may have."""
    return QUEUE_LIMIT if kind(inputs) == "ZAQAR_SIGNAL" else BODY_LIMIT


def preload() -> tuple[ModuleType, ...]:
    """Import the modules of a request, while a hook runs and no signal waits."""
    import urllib.parse

    from . import request

    return request, urllib.parse


def url_age(url: str) -> float | None:
    """Return how many seconds ago the URL of a CFN_SIGNAL was signed, None without a time stamp."""
    stamp = _STAMP.search(url)
    if stamp is None:
        return None
    year, month, day, hour, minute, second = map(int, stamp.groups())
    return time.time() - 60 * (60 * (24 * _days(year, month, day) + hour) + minute) - second


def _days(year: int, month: int, day: int) -> int:
    """Return the days from 1970 to a date: calendar.timegm, without loading datetime and locale."""
    # Count years from March, so that a leap day is a year's last.
    year -= month < 3
    month = (month - 3) % 12
    leap_days = year // 4 - year // 100 + year // 400
    return 365 * year + leap_days + (153 * month + 2) // 5 + day - 719469


class Sender:
    """Sends the signals of one pass, and remembers which hosts did not answer in it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._left = settings.signal_time
        self._hosts: dict[str, str] = {}

    def send(self, inputs: dict[str, Any], body: bytes) -> None:
        """Send *body* (JSON bytes) the way *inputs* say. Raises NotAccepted.

        A refused connection and a 5xx are tried three times within a few seconds, a host that
        hangs once; a host that failed before in this pass gets one try, or none when it hung.
        """
        way = kind(inputs)
        if way == "NO_SIGNAL":
            return
        if way is None:
            raise NotAccepted(
                "Heat sent no address to signal to (deploy_signal_id is empty): the stack's "
                "user or key pair could not be made. See Heat's engine log",
                final=True,
            )
        host = _host(inputs)
        attempts = 1 if host in self._hosts else ATTEMPTS
        # A dead host costs a whole timeout for each signal, and the agent would poll no more
        # meanwhile.
        if self._hosts.get(host) == "hangs":
            raise NotAccepted(f'"{host}" did not answer a moment ago; it is tried again later')
        for attempt in range(1, attempts + 1):
            if self._left <= 0:
                raise NotAccepted("the time for signals in this pass is used up")
            start = time.monotonic()
            try:
                self._once(way, inputs, body)
                return
            except NotAccepted as error:
                failure = error
            finally:
                self._left -= time.monotonic() - start
            if failure.dead or failure.again:
                self._hosts[host] = "hangs" if failure.dead else "fails"
            if not failure.again or attempt == attempts or self._left <= 0:
                raise failure
            _pause(attempt)

    def _once(self, way: str, inputs: dict[str, Any], body: bytes) -> None:
        with _deadline(self._settings.request_timeout):
            if way in _URL_KINDS:
                self._to_url(way, inputs, body)
            else:
                token, project, catalog = self._token(inputs)
                region = inputs.get("deploy_region_name")
                headers = {"X-Auth-Token": token}
                if way == "HEAT_SIGNAL":
                    self._to_heat(inputs, body, headers, catalog, region)
                else:
                    headers["X-Project-Id"] = project
                    self._to_queue(inputs, body, headers, catalog, region)

    def _to_url(self, way: str, inputs: dict[str, Any], body: bytes) -> None:
        url = inputs["deploy_signal_id"]
        method = "PUT" if way == "TEMP_URL_SIGNAL" else "POST"
        answer = self._request(method, url, body)
        # The Date header of the answer shows whether the clock is the cause.
        if answer.status == 403 and way == "CFN_SIGNAL":
            from . import request

            raise NotAccepted(_forbidden(url, request.skew(answer)), refused=True)
        _accept(answer, url, method, gone=GONE)

    def _to_heat(
        self,
        inputs: dict[str, Any],
        body: bytes,
        headers: dict[str, str],
        catalog: object,
        region: object,
    ) -> None:
        from urllib.parse import quote

        stack = inputs.get("deploy_stack_id")
        resource = inputs.get("deploy_resource_name")
        if not (stack and resource and isinstance(stack, str) and isinstance(resource, str)):
            raise NotAccepted("the inputs name no stack and resource to signal", final=True)
        base = _endpoint(catalog, "orchestration", region)
        # deploy_stack_id is Heat's stack_path(), "name/id" and quoted already; the resource is not.
        path = f"{quote(stack, safe='/%')}/resources/{quote(resource, safe='')}"
        url = f"{base}/stacks/{path}/signal"
        _accept(self._request("POST", url, body, headers), url, "POST", gone=GONE)

    def _to_queue(
        self,
        inputs: dict[str, Any],
        body: bytes,
        headers: dict[str, str],
        catalog: object,
        region: object,
    ) -> None:
        from urllib.parse import quote

        base = _endpoint(catalog, "messaging", region)
        # Zaqar's endpoint in the catalogue may lack the version.
        if not base.endswith(("/v2", "/v2.0")):
            base += "/v2"
        url = f"{base}/queues/{quote(str(inputs['deploy_queue_id']), safe='')}/messages"
        number = os.urandom(16).hex()
        # Zaqar demands a UUID. This is one of version 4 without the uuid module, slow to import.
        headers["Client-ID"] = "-".join(
            (number[:8], number[8:12], "4" + number[13:16], "8" + number[17:20], number[20:])
        )
        # The body is JSON already, so it is not parsed and encoded once more.
        message = b'{"messages":[{"ttl":3600,"body":' + body + b"}]}"
        _accept(self._request("POST", url, message, headers), url, "POST")

    def _token(self, inputs: dict[str, Any]) -> tuple[str, str, Any]:
        """Return (token, project id, catalog) for the deployment's own user."""
        from . import values

        base = str(inputs["deploy_auth_url"]).rstrip("/")
        # No discovery: version 3 is beside 2.0 under the same address.
        if base.endswith("/v2.0"):
            base = base[: -len("/v2.0")]
        if not base.endswith("/v3"):
            base += "/v3"
        user = {"id": inputs.get("deploy_user_id"), "password": inputs.get("deploy_password")}
        # A name is unique within a domain only.
        if not user["id"]:
            user = {
                "name": inputs.get("deploy_username"),
                "domain": {"id": "default"},
                "password": inputs.get("deploy_password"),
            }
        project = inputs.get("deploy_project_id")
        request = {
            "auth": {
                "identity": {"methods": ["password"], "password": {"user": user}},
                "scope": {"project": {"id": project}},
            }
        }
        url = base + "/auth/tokens"
        answer = self._request("POST", url, values.encode(request).encode("ascii"))
        _accept(answer, url, "POST")
        # Keystone puts the token into a header; the body describes it.
        token = answer.headers.get("x-subject-token")
        try:
            catalog = values.decode(answer.body)["token"]["catalog"]
        except (ValueError, KeyError, TypeError):
            catalog = None
        if not token or catalog is None:
            raise NotAccepted(f'"{_redacted(url)}" answered with something that is not a token')
        return token, str(project), catalog

    def _request(
        self, method: str, url: str, data: bytes, headers: dict[str, str] | None = None
    ) -> Answer:
        """Make one request and return its http1.Answer, whatever its status. Raises NotAccepted."""
        from . import request
        from .deadline import Deadline

        seconds = self._settings.request_timeout
        trust = request.Trust(self._settings.ca_file)
        deadline = Deadline(seconds, seconds)
        return request.send(method, url, data, headers, deadline=deadline, trust=trust)


def _accept(answer: Answer, url: str, method: str, gone: tuple[int, ...] = ()) -> None:
    """Return if the answer means that the signal was accepted; raise NotAccepted otherwise.

    gone: the statuses after which no further try can succeed.
    """
    status = answer.status
    shown = _redacted(url)
    start = answer.body[:256].lstrip().lower()
    # A captive portal answers every request with 200. Taken for Heat, it would lose the signal.
    if status == 200 and start.startswith((b"<!doctype html", b"<html")):
        raise NotAccepted(
            f'"{shown}" answered 200 with a web page: something other than Heat, such as a proxy '
            "or a login page, has answered"
        )
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise NotAccepted(f'"{shown}" redirects ({status}), and a {method} does not follow')
    hints = {
        401: ": the credentials or the signature are not accepted",
        403: ": not allowed; a temporary URL may have expired or be for another method",
        404: ": the stack or its resource is not there (any more)",
        410: ": the stack or its resource is not there any more",
        413: ": the signal is too large for it",
    }
    raise NotAccepted(
        f'"{shown}" answered {status}' + hints.get(status, ""),
        # 429: Too Many Requests (RFC 6585).
        again=status >= 500 or status == 429,
        refused=status in REFUSED,
        final=status in gone,
    )


def _forbidden(url: str, skew: float | None) -> str:
    """Return a sentence that explains why a CFN URL was refused."""
    shown = _redacted(url)
    age = url_age(url)
    if skew is not None and abs(skew) > 300:
        return (
            f"\"{shown}\" answered 403: this machine's clock differs from the server's by "
            f"{int(skew)} seconds; set it right"
        )
    if age is not None and age > AGED:
        return (
            f'"{shown}" answered 403: the URL was signed {int(age // 60)} minutes ago, and many '
            "clouds accept one for only 15 minutes. Ask for a longer [credential] auth_ttl in "
            "keystone.conf, or use signal_transport HEAT_SIGNAL or TEMP_URL_SIGNAL"
        )
    return (
        f'"{shown}" answered 403: the signature is not accepted, though the URL is fresh. If polls '
        "are refused too, Heat lacks credentials of its own for Keystone's ec2tokens"
    )


def _endpoint(catalog: object, service: str, region: object) -> str:
    """Return the public endpoint of *service* in a Keystone v3 catalog, without a last slash."""
    for entry in catalog if isinstance(catalog, list) else ():
        if not isinstance(entry, dict) or entry.get("type") != service:
            continue
        endpoints = entry.get("endpoints")
        for endpoint in endpoints if isinstance(endpoints, list) else ():
            if not isinstance(endpoint, dict) or endpoint.get("interface") != "public":
                continue
            if not isinstance(endpoint.get("url"), str):
                continue
            # Keystone v3 lists both; "region" is the older name.
            if region and region not in (endpoint.get("region_id"), endpoint.get("region")):
                continue
            return str(endpoint["url"]).rstrip("/")
    where = " in the deployment's region" if region else ""
    raise NotAccepted(f'Keystone\'s catalogue has no public endpoint of type "{service}"{where}')


def _redacted(url: object) -> str:
    from . import address

    return address.redacted(url)


def _host(inputs: dict[str, Any]) -> str:
    from urllib.parse import urlsplit

    url = inputs.get("deploy_signal_id") or inputs.get("deploy_auth_url")
    try:
        parts = urlsplit(str(url))
        return parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""


def _pause(attempt: int) -> None:
    """Wait before the next try: longer each time, and at random, to differ from other machines."""
    # At random without the random module, which takes long to import.
    spread = int.from_bytes(os.urandom(2), "big") / 65536
    time.sleep(min(2 ** (attempt - 1), 8) * (0.25 + spread / 2))


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise NotAccepted when the block takes longer.

    A socket's own timeout starts anew with each byte, so a server that sends one now and then
    would hold the pass for ever.
    """
    try:
        with process.at_most(seconds):
            yield
    except TimeoutError:
        raise NotAccepted(f"no answer within {seconds:g} seconds", dead=True) from None
