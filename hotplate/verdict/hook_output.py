"""The output of a failed deployment, and the part of it with the error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from hotplate.verdict.tool_errors import error_in

_LEFT_OUT = re.compile(
    r"\[\.\.\. +(?P<much>\d+ (?:of \d+ )?\w+) are left out here(?:; (?P<where>[^\]]*?))? \.\.\.\]"
)
"""The mark of truncated text: the runner's, which names the full copy, and that of the code that
captures a tool's output.
"""

SHORTEST = 4
"""The shortest value that is searched for in the output."""


def left_out(text: str) -> str:
    """Return a clause about the text cut from an output and the place of the full one.

    :return: "" for one that is whole.
    """
    match = _LEFT_OUT.search(text)
    if not match:
        return ""
    where = match["where"] or "/var/log/heat-config on the server has more of it"
    return f"{match['much']} are left out; {where}"


@dataclass(frozen=True)
class HookOutput:
    """The output of a deployment's hook.

    :param stdout: Heat's ``deploy_stdout``, and so on.
    """

    stdout: str = ""
    stderr: str = ""
    status_code: str = ""

    @classmethod
    def of(cls, values: Mapping[str, object]) -> HookOutput:
        """Read Heat's ``output_values`` of a deployment."""
        return cls(
            *(
                str(values.get(f"deploy_{name}") or "")
                for name in ("stdout", "stderr", "status_code")
            )
        )

    def __str__(self) -> str:
        return f"{self.stderr}\n{self.stdout}"

    def without(self, secrets: Iterable[str], redact: Callable[[str], str]) -> HookOutput:
        """Return a copy with "REDACTED" in place of each secret.

        :param secrets: values; those too short to distinguish from other words stay.
        :param redact: removes secrets that are recognised by their form.
        """
        hidden = sorted({each for each in secrets if len(each) >= SHORTEST}, key=len, reverse=True)

        patterns = [_pattern(each) for each in hidden]

        def clean(text: str) -> str:
            for each in patterns:
                text = each.sub("REDACTED", text)
            return redact(text)

        return replace(self, stdout=clean(self.stdout), stderr=clean(self.stderr))

    @property
    def cut(self) -> str:
        """A clause about the missing text; "" when nothing is missing."""
        for name, text in (("stderr", self.stderr), ("stdout", self.stdout)):
            if missing := left_out(text):
                return f"of its {name} {missing}"
        return ""

    @property
    def error(self) -> str:
        """The line with the error, "" when there is no output."""
        return error_in(self.stderr, self.stdout)


def _pattern(secret: str) -> re.Pattern[str]:
    """Return a pattern for a secret; a plain word matches only as a word or an option's value.

    A user whose password is "admin" still wants to read "mysqladmin: command not found".
    """
    quoted = re.escape(secret)
    if not re.fullmatch(r"[A-Z]?[a-z]{3,11}", secret):
        return re.compile(quoted)
    begins = r"(?:(?<![A-Za-z])|(?<=^-[A-Za-z])|(?<=[^A-Za-z0-9]-[A-Za-z]))"
    return re.compile(rf"{begins}(?:{quoted})+(?![A-Za-z])", re.MULTILINE)
