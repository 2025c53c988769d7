"""Log in to a server, on a host of ``ssh_hosts.py``, and print the result as JSON.

The argument is a JSON object: ``key`` (file), ``address``, ``jump``, ``config`` (file), and
``until`` (a part of the final message; the login is repeated up to a limit until it appears).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import paramiko

from hotplate.elsewhere.ways import WayOptions, Ways
from hotplate.errors import HotplateError
from hotplate.timing.deadline import Deadline, DeadlineExceeded

TRIES = 40


def main() -> None:
    words = json.loads(sys.argv[1])
    options = WayOptions(
        jump=words.get("jump", ""),
        config=Path(words["config"]) if words.get("config") else None,
        environment=dict(os.environ),
    )
    key = paramiko.Ed25519Key.from_private_key_file(words["key"])
    until = words.get("until", "")
    with Ways(options, key=key) as ways:
        for _ in range(TRIES if until else 1):
            # Long when it is to succeed; short, and repeated, when it is to fail at its end.
            came = attempt(ways, words["address"], Deadline(1.0 if until else 300.0, "ssh"))
            if until in came.get("message", ""):
                break
    print(json.dumps(came))


def attempt(ways: Ways, address: str, deadline: Deadline) -> dict[str, object]:
    try:
        way, by_key_pair = ways.log_in(address, deadline)
    except HotplateError as error:
        return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    except DeadlineExceeded as error:
        return {"error": type(error).__name__, "message": str(error)}
    text = way.run("echo hello; echo $SSH_CONNECTION").text
    way.close()
    return {"user": way.user, "by_key_pair": by_key_pair, "lines": text.splitlines()}


if __name__ == "__main__":
    main()
