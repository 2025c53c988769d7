"""The sources of metadata: one module each, with a class that has ``collect()``.

``collect()`` returns [(key, document), ...] and raises the exceptions of problems.py. A source may
keep state until the settings change.
"""

from __future__ import annotations

from importlib import import_module

CLASSES = {
    "heat_local": ("heat_local", "HeatLocal"),
    "ec2": ("ec2", "Ec2"),
    "cfn": ("cfn", "Cfn"),
    "heat": ("heat", "Heat"),
    "request": ("temporary_url", "TemporaryUrl"),
    "local": ("local", "Local"),
    "zaqar": ("zaqar", "Zaqar"),
}
"""The module and class of each source; only those in use are imported."""

REMOTE = ("cfn", "heat", "request", "zaqar")
"""Sources whose cached document stays valid while their server cannot be reached."""


WARNINGS = 1000
"""Maximum different warnings that are remembered."""


class Surroundings:
    """What sources use: settings, client (web.Client), cache (cache.Cache), log (log.Log)."""

    def __init__(self, settings, client, cache, log):
        self.settings = settings
        self.client = client
        self.cache = cache
        self.log = log
        self._warnings = set()

    def warn(self, sentence):
        """Log a warning once, and repetitions in later rounds at DEBUG."""
        say = self.log.debug if sentence in self._warnings else self.log.warning
        if len(self._warnings) < WARNINGS:
            self._warnings.add(sentence)
        say(sentence)


def make(name, surroundings):
    """Return the source *name*."""
    module, kind = CLASSES[name]
    return getattr(import_module(f"{__name__}.{module}"), kind)(surroundings)
