"""What a deployment that failed sent back, and the part of it that tells why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from hotplate.verdict.tool_errors import error_in

_LEFT_OUT = re.compile(
    r"\[\.\.\. +(?P<much>\d+ (?:of \d+ )?\w+) are left out here(?:; (?P<where>[^\]]*?))? \.\.\.\]"
)
"""The mark of the runner, which says where the whole is, and of what captures a tool's output."""

SHORTEST = 4
"""The length from which on a value is looked for in what was written."""


def left_out(text: str) -> str:
    """Return what was cut from an output, and where the whole is, as the end of a sentence.

    :return: "" for one that is whole.
    """
    match = _LEFT_OUT.search(text)
    if not match:
        return ""
    where = match["where"] or "/var/log/heat-config on the server has more of it"
    return f"{match['much']} are left out; {where}"


@dataclass(frozen=True)
class HookOutput:
    """What the hook of one deployment wrote.

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
        """Return it without the secrets, however they came into it.

        :param secrets: values; those too short to tell from other words stay.
        :param redact: takes out what is a secret by its form.
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
        """What is not in it, in a clause; "" when it is whole."""
        for name, text in (("stderr", self.stderr), ("stdout", self.stdout)):
            if missing := left_out(text):
                return f"of its {name} {missing}"
        return ""

    @property
    def error(self) -> str:
        """The line that tells why it failed, "" when it wrote nothing."""
        return error_in(self.stderr, self.stdout)


def _pattern(secret: str) -> re.Pattern[str]:
    """Find a secret; one that is a plain word only where it is a word, or the value of an option.

    Who takes "admin" for a password still wants to read "mysqladmin: command not found".
    """
    quoted = re.escape(secret)
    if not re.fullmatch(r"[A-Z]?[a-z]{3,11}", secret):
        return re.compile(quoted)
    begins = r"(?:(?<![A-Za-z])|(?<=^-[A-Za-z])|(?<=[^A-Za-z0-9]-[A-Za-z]))"
    return re.compile(rf"{begins}(?:{quoted})+(?![A-Za-z])", re.MULTILINE)
