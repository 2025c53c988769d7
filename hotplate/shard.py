"""One of several parts of a test run, for CI systems that split it among their workers.

The part of an item depends only on its name: no worker has to know of another.
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

    :param part: its number, from 1 on.
    """

    part: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard of the form ``hash:M/N``.

        :raises ValueError: when it is malformed; the message has the form.
        """
        match = re.fullmatch(r"hash:(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f'--shard "{text}" is not of the form hash:M/N with 1 <= M <= N')
        return cls(int(match[1]), int(match[2]))

    def has(self, name: str) -> bool:
        """Return True when the item of that name is in this part."""
        # Python's hash() differs between processes. A file name need not be UTF-8.
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
        number = int.from_bytes(digest[:8], "big")
        return number % self.parts == self.part - 1
