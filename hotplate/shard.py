"""One of several parts of what is to run, for CI systems that split it among their workers.

Which part something is in depends on its name alone: no worker has to know of another.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """The M-th of N parts.

    >>> [Shard.parse(f"hash:{part}/2").has("web.qcow2") for part in (1, 2)]
    [False, True]

    :param part: which one, from 1 on.
    """

    part: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that is meant by ``hash:M/N``.

        :raises ValueError: when it is not of that form; says so.
        """
        match = re.fullmatch(r"hash:(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f'--shard "{text}" is not of the form hash:M/N with 1 <= M <= N')
        return cls(int(match[1]), int(match[2]))

    def has(self, name: str) -> bool:
        """Whether what is called so is in this part."""
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
        number = int.from_bytes(digest[:8], "big")
        return number % self.parts == self.part - 1
