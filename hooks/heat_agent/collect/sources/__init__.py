"""The sources of metadata: one module each, with a class that has ``collect()``.

``collect()`` returns [(key, document), ...] and raises the exceptions of problems.py. A source may
keep state until the settings change.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..cache import Cache
    from ..log import Log
    from ..settings import Settings
    from ..web import Client

#: The module and class of each source; only those in use are imported.
CLASSES = {
    "heat_local": ("heat_local", "HeatLocal"),
    "ec2": ("ec2", "Ec2"),
    "cfn": ("cfn", "Cfn"),
    "heat": ("heat", "Heat"),
    "request": ("temporary_url", "TemporaryUrl"),
    "local": ("local", "Local"),
    "zaqar": ("zaqar", "Zaqar"),
}

#: Sources of deployments; their cached document stays valid while their server cannot be reached.
REMOTE = ("cfn", "heat", "request", "zaqar")


#: Maximum different warnings that are remembered.
WARNINGS = 1000


class Surroundings:
    """Services for sources: settings, client (web.Client), cache (cache.Cache), log (log.Log)."""

    def __init__(self, settings: Settings, client: Client, cache: Cache, log: Log) -> None:
        self.settings = settings
        self.client = client
        self.cache = cache
        self.log = log
        self._warnings: set[str] = set()

    def warn(self, sentence: str) -> None:
        """Log a warning once, and repetitions in later rounds at DEBUG."""
        say = self.log.debug if sentence in self._warnings else self.log.warning
        if len(self._warnings) < WARNINGS:
            self._warnings.add(sentence)
        say(sentence)


def make(name: str, surroundings: Surroundings) -> Any:
    """Return the source *name*."""
    module, kind = CLASSES[name]
    return getattr(import_module(f"{__name__}.{module}"), kind)(surroundings)
