"""HTTP for the ``cfn-*`` commands: with redirects and retries, never showing a signed URL."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from heat_config import request
from heat_config.address import redacted
from heat_config.deadline import Deadline
from heat_config.refusal import Misconfigured, NotAccepted
from heat_config.settings import Settings

from heat_cfn.problems import CfnError

TIMEOUT = 60  # seconds without a byte
ATTEMPTS = 8
MAX_PAUSE = 30  # seconds; 1 + 2 + 4 + 8 + 16 + 30 + 30 between eight attempts
TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
MOVED = (301, 302, 303, 307, 308)
REDIRECTS = 10
ANY_TIME = float("inf")


class Refused(CfnError):
    """The server answered with a status other than success."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Unusable(CfnError):
    """This machine is misconfigured; trying again does not help."""


def check(url: Any, where: str, schemes: tuple[str, ...] = ("http", "https")) -> str:
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
    raise CfnError(f'"{where}" must be an address that begins with one of {wanted}')


def ask(
    url: str,
    method: str = "GET",
    body: bytes | None = None,
    *,
    insecure: bool = False,
    timeout: float = TIMEOUT,
    direct: bool = False,
    limit: int = request.ANSWER_LIMIT,
    sink: Callable[[bytes], Any] | None = None,
) -> bytes:
    """Make a request; return the first ``limit`` bytes of the answer's body.

    It uses the environment's proxy for the address, and verifies servers by the system's
    certificates, or by ``ca_file`` of /etc/heat-config.conf, as the runner does.

    :param body: JSON; a signature covers the parameters of a form.
    :param insecure: do not verify the server's certificate.
    :param timeout: seconds without a byte.
    :param direct: use no proxy.
    :param sink: called with each piece of the body instead; only then redirects are followed: a
        signature is valid for one address, and Heat does not redirect.

    :raises Refused: for an answer of 300 and above.
    :raises CfnError: when there is no whole answer.
    """
    trust = request.Trust(Settings().ca_file, verify=not insecure)
    # GitHub refuses requests without a User-Agent.
    headers = {"User-Agent": "heat-cfn"}
    for _ in range(REDIRECTS + 1):
        try:
            answer = request.send(
                method,
                url,
                body,
                headers,
                deadline=Deadline(timeout, ANY_TIME),
                trust=trust,
                direct=direct,
                limit=limit,
                sink=sink,
            )
        except Misconfigured as error:
            raise Unusable(error.sentence) from None
        except NotAccepted as error:
            raise CfnError(error.sentence) from None
        if answer.status < 300:
            return answer.body
        location = answer.headers.get("location")
        if sink is None or answer.status not in MOVED or not location:
            break
        url = urllib.parse.urljoin(url, location)
    raise Refused(f'"{redacted(url)}" answered {answer.status}', answer.status)


def patiently(
    action: Callable[[], Any],
    attempts: int = ATTEMPTS,
    say: Callable[[str], None] = lambda _: None,
) -> Any:
    """Return the result of ``action()``; retry while the server is unreachable or overloaded.

    :param attempts: how often at most; the pauses double from one second up to thirty.
    :raises CfnError: that of the last attempt, or the first that a retry cannot fix.
    """
    pause = 1
    for _ in range(attempts - 1):
        try:
            return action()
        except CfnError as error:
            if isinstance(error, Unusable):
                raise
            if isinstance(error, Refused) and error.status not in TRY_AGAIN:
                raise
            say(f"{error}; trying again in {pause} s")
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)
    return action()
