"""The program heat-config-notify, which third-party programs call."""

from __future__ import annotations

import sys

from . import result, transport, values
from .refusal import NotAccepted
from .settings import Settings

# No docstring: the library is compiled without them.
HELP = """\
heat-config-notify: send one signal, with the arguments that heat-agents' program has.

usage: heat-config-notify CONFIG

CONFIG is a file with a deployment as JSON; its inputs say where the signal goes. The signal, a
JSON object, is read from stdin; an empty stdin is the signal {}, which means success.
Exit status: 0 the signal was accepted (or the deployment wants none), 1 it was not, 2 usage.
"""
LIMIT = 64 << 20


def main(arguments: list[str]) -> int:
    """Send the signal and return the exit status."""
    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(HELP)
        return 0
    if len(arguments) != 1:
        sys.stderr.write(HELP)
        return 2
    try:
        with open(arguments[0], "rb") as stream:
            config = values.decode(stream.read(LIMIT))
    except OSError as error:
        return _say(f'"{arguments[0]}" cannot be read: {error.strerror}.', 2)
    except ValueError:
        return _say(f'"{arguments[0]}" holds no JSON.', 2)
    try:
        # Heat takes a signal without deploy_status_code for a success.
        signal = values.decode(sys.stdin.buffer.read(LIMIT) or b"{}")
    except ValueError:
        signal = None
    if not isinstance(config, dict) or not isinstance(signal, dict):
        return _say("the config and the signal must be JSON objects; nothing was sent.", 2)
    inputs = values.named_values(config.get("inputs"))
    if transport.kind(inputs) is None:
        return _say("the config asks for no signal; nothing was sent.", 0)
    body = result.trim(signal, transport.limit(inputs), lambda _field: "the rest was not sent")
    try:
        transport.Sender(Settings()).send(inputs, body)
    except NotAccepted as error:
        return _say(f"the signal was not accepted: {error.sentence}.", 1)
    return 0


def _say(sentence: str, status: int) -> int:
    sys.stderr.write(f"heat-config-notify: {sentence}\n")
    return status
