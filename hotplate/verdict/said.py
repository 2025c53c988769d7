"""What a deployment that failed sent back, and the part of it that tells why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Said:
    """What the hook of one deployment wrote.

    :param stdout: Heat's ``deploy_stdout``, and so on.
    """

    stdout: str = ""
    stderr: str = ""
    status_code: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Said:
        """Read Heat's ``output_values`` of a deployment."""
        return cls(
            *(
                str(values.get(f"deploy_{name}") or "")
                for name in ("stdout", "stderr", "status_code")
            )
        )

    def __str__(self) -> str:
        return self.stderr if self.stderr.strip() else self.stdout
