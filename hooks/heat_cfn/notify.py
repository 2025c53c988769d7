"""cfn-signal: report to a wait condition whether the configuration succeeded."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any

from heat_config.address import redacted

from heat_cfn import command_line, metadata, web
from heat_cfn.problems import CfnError

PROGRAM = "cfn-signal"
#: The oldest version, which every Nova serves and heat-cfntools asks for.
NOVA = "http://169.254.169.254/openstack/2012-08-10/meta_data.json"


def main(argv: list[str] | None = None) -> int:
    """Run cfn-signal; returns 0 only when the signal was accepted."""
    options = command_line.parser(
        PROGRAM,
        "Signal a CloudFormation wait condition. The exit status is 0 only when the signal was "
        "accepted; while the server is unreachable or overloaded, it is sent again for about two "
        "minutes.",
    )
    options.add_argument(
        "-s", "--success", default="true", metavar="true|false", help="SUCCESS or FAILURE"
    )
    options.add_argument(
        "-e",
        "--exit-code",
        metavar="N",
        help="0 means SUCCESS and anything else FAILURE, whatever --success says",
    )
    options.add_argument("-r", "--reason", default="Configuration Complete", metavar="TEXT")
    options.add_argument(
        "-d", "--data", default="", metavar="TEXT", help="data for the wait condition"
    )
    options.add_argument(
        "-i",
        "--id",
        metavar="ID",
        help="distinguishes signals from each other; default: the server's uuid",
    )
    options.add_argument(
        "-k", "--insecure", action="store_true", help="do not verify the server's certificate"
    )
    options.add_argument(
        "--attempts",
        type=int,
        default=web.ATTEMPTS,
        metavar="N",
        help="how often to try at most; default: %(default)s, over about two minutes",
    )
    options.add_argument("url", metavar="URL", help="the wait condition handle's signed address")
    arguments = options.parse_args(argv)
    if arguments.success.lower() not in ("true", "false"):
        options.error("--success must be true or false")
    if arguments.attempts < 1:
        options.error("--attempts must be at least 1")
    return command_line.run(PROGRAM, lambda: _signal(arguments))


def _signal(arguments: Any) -> int:
    url = web.check(arguments.url, "the wait condition's address")
    succeeded = arguments.success.lower() == "true"
    if arguments.exit_code is not None:
        # Any spelling of zero; what is no number is a failure.
        succeeded = arguments.exit_code.strip().lstrip("+-0") == "" and "0" in arguments.exit_code
    body = {
        "Status": "SUCCESS" if succeeded else "FAILURE",
        "Reason": _text(arguments.reason),
        "UniqueId": _text(arguments.id or unique_id()),
        "Data": _text(arguments.data),
    }
    data = json.dumps(body).encode()
    try:
        web.patiently(
            # After a status of success the body does not matter.
            lambda: web.ask(url, "PUT", data, insecure=arguments.insecure, limit=0),
            arguments.attempts,
            lambda message: command_line.note(PROGRAM, message),
        )
    except web.Refused as error:
        hint = ""
        if error.status == 403:
            hint = (
                ": the address was made more than 15 minutes ago (Keystone's auth_ttl), this "
                "machine's clock is wrong, or the stack is gone or suspended"
            )
        raise CfnError(f"the signal was refused: {error}{hint}") from None
    status = body["Status"]
    command_line.note(PROGRAM, f'{status} accepted by "{redacted(url)}"')
    return 0


def _text(argument: str) -> str:
    """Return a command-line argument as text, even if its bytes are not UTF-8."""
    return os.fsencode(argument).decode("utf-8", "replace")


def unique_id() -> str:
    """Return the server's uuid from Nova's metadata (kept for the next time), else its name."""
    path = metadata.state_path("nova_meta.json")
    uuid = _uuid(_read(path))
    if uuid:
        return uuid
    address = os.environ.get("HEAT_CFN_NOVA_URL", NOVA)
    try:
        # Directly: no proxy reaches a link-local address.
        data = web.ask(address, timeout=10, direct=True)
    except CfnError:
        return socket.getfqdn()
    uuid = _uuid(data)
    if not uuid:
        return socket.getfqdn()
    from heat_config import files

    with contextlib.suppress(OSError):  # then it is requested again
        files.make_directory(os.path.dirname(path))
        files.write_whole(path, data)
    return uuid


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def _uuid(data: bytes) -> str:
    try:
        document: dict[str, Any] = json.loads(data)
        uuid = document["uuid"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return uuid if isinstance(uuid, str) else ""
