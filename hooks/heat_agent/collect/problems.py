"""The agent's errors. A message is one clause, without query strings, tokens or inputs."""

from __future__ import annotations


class NotConfigured(Exception):
    """A source has no address or no credentials; the message names the option."""


class NotThere(Exception):
    """A source has no document, and an earlier one is not valid any more."""


class Unavailable(Exception):
    """A source cannot be read now; its earlier document stays valid.

    overloaded: whether its server should be polled less often. wait: seconds that the server asked
    for (Retry-After), or None. quiet: whether this is normal and needs no warning.
    """

    def __init__(
        self,
        sentence: str,
        *,
        overloaded: bool = False,
        wait: float | None = None,
        quiet: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.overloaded = overloaded
        self.wait = wait
        self.quiet = quiet


class SettingsError(Exception):
    """The command line, the environment or a configuration file cannot be used."""
