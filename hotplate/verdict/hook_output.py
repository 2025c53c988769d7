"""What a deployment that failed sent back, and the part of it that tells why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from hotplate.verdict.tool_errors import error_in

SHORTEST = 4
"""The length from which on a value is looked for in what was written."""


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

        def clean(text: str) -> str:
            for each in hidden:
                text = text.replace(each, "REDACTED")
            return redact(text)

        return replace(self, stdout=clean(self.stdout), stderr=clean(self.stderr))

    @property
    def error(self) -> str:
        """The line that tells why it failed, "" when it wrote nothing."""
        return error_in(self.stderr, self.stdout)
