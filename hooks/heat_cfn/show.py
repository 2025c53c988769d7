"""cfn-get-metadata: print the metadata of a resource."""

from __future__ import annotations

import json
from typing import Any

from heat_cfn import command_line
from heat_cfn.problems import CfnError

PROGRAM = "cfn-get-metadata"


def main(argv: list[str] | None = None) -> int:
    """Run cfn-get-metadata; returns 0 when it has printed the metadata."""
    options = command_line.parser(
        PROGRAM, "Print the metadata of a resource as JSON, and keep it for cfn-init and cfn-hup."
    )
    command_line.add_source_options(options)
    options.add_argument("-k", "--key", help='print only this part, such as "a.b"')
    arguments = options.parse_args(argv)
    return command_line.run(PROGRAM, lambda: _show(arguments))


def _show(arguments: Any) -> int:
    value = part(command_line.find(arguments), arguments.key or "")
    print(json.dumps(value, indent=4))
    return 0


def part(value: Any, path: str) -> Any:
    """Return the part of a document at a path with dots; a key may itself contain dots."""
    if not path:
        return value
    if isinstance(value, dict):
        # The longest first: "a.b" may be a key itself, beside "a".
        for key in sorted(value, key=len, reverse=True):
            if path == key:
                return value[key]
            if path.startswith(key + "."):
                return part(value[key], path[len(key) + 1 :])
    raise CfnError(f'the metadata has no "{path}"')
