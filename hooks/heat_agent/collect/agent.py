"""The agent's loop: collect, cache, and run the command when something changed."""

from __future__ import annotations

import os
import time

from . import command, documents, sources, waiting
from .cache import Cache
from .pace import Pace
from .problems import NotConfigured, NotThere, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .log import Log
    from .settings import Settings
    from .signals import Signals
    from .web import Client

RELOAD = None
#: Maximum seconds of one poll(2), whose argument is an int of milliseconds.
LONGEST_POLL = 3600.0


class Seams:
    """The parts of the agent that a caller can replace.

    command: called with the configured command and the paths of the documents, in order, when
    something changed; returns the exit status. By default a process is started. idle: called after
    each round without changes.
    """

    def __init__(
        self,
        command: Callable[[str, list[str]], int] = command.run,
        idle: Callable[[], None] = waiting.resend,
    ) -> None:
        self.command = command
        self.idle = idle


class Gathered:
    """The result of one round: (key, JSON text) pairs, and the servers in trouble.

    While a server of deployments works, only servers of deployments count: the pauses are theirs,
    and a metadata service that is missing for good must not lengthen them.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self._works = False
        self._troubles: dict[str, float | None] = {}

    def works(self, name: str) -> None:
        """Note that the server of the source *name* is not in trouble."""
        self._works = self._works or name in sources.REMOTE

    def trouble(self, name: str, wait: float | None = None) -> None:
        """Note that the source *name* is in trouble; *wait*: the seconds it asked for, or None."""
        self._troubles[name] = wait

    @property
    def troubled(self) -> bool:
        """True when polls should be less frequent."""
        return bool(self._counted())

    @property
    def wait(self) -> float | None:
        """The longest wait that a server asked for, in seconds, or None."""
        return max((wait for wait in self._counted() if wait is not None), default=None)

    def _counted(self) -> list[float | None]:
        counted = sources.REMOTE if self._works else self._troubles
        return [wait for name, wait in self._troubles.items() if name in counted]


class Agent:
    """Poll as *settings* require; *client* is a web.Client, *seams* the Seams.

    signals: a signals.Signals that has been entered. rounds: the number of rounds so far.
    """

    def __init__(
        self, settings: Settings, log: Log, client: Client, seams: Seams, signals: Signals
    ) -> None:
        self._settings = settings
        self._log = log
        self._seams = seams
        self._signals = signals
        self._cache = Cache(settings.cachedir)
        around = sources.Surroundings(settings, client, self._cache, log)
        self._sources = [(name, sources.make(name, around)) for name in settings.collectors]
        self._earlier: dict[str, list[tuple[str, str]]] = {}
        self._complaints: dict[str, str] = {}
        self.rounds = 0
        self._pace = Pace(settings.shortest, settings.longest)

    def document(self) -> dict[str, Any]:
        """Return all documents that can be collected now, by key, without caching them."""
        import json

        return {key: json.loads(text) for key, text in self._gather(keep=False).pairs}

    def close(self) -> None:
        """Close the connections of the sources."""
        for _, source in self._sources:
            getattr(source, "close", lambda: None)()

    def run(self) -> int | None:
        """Poll until there is a reason to stop; return an exit status, or RELOAD.

        Raises the exceptions of signals.py.
        """
        while True:
            status, pause = self.round()
            if self._settings.one_time:
                return status or 0
            # Only the command renders a new configuration, so the files are compared after it.
            if status is not None and self._settings.are_outdated():
                return RELOAD
            if status is None:
                self._seams.idle()
            self._log.debug(f"The next round is in {pause:.2f} seconds.")
            self._sleep(pause)

    def round(self) -> tuple[int | None, float]:
        """Do one round; return the command's status and the seconds until the next round.

        The status is None if the command was not run, 1 if the cache could not be written.
        """
        self.rounds += 1
        gathered = self._gather(keep=True)
        changed, status = self._take_in(gathered.pairs)
        # A command that fails is run again after each poll; that must not keep the pauses short.
        fresh = bool(changed) and status == 0
        return status, self._pace.after(fresh=fresh, troubled=gathered.troubled, wait=gathered.wait)

    def _gather(self, keep: bool) -> Gathered:
        """Read every source; with *keep*, an unavailable one counts with its earlier document."""
        gathered = Gathered()
        for name, source in self._sources:
            try:
                # A document that cannot be encoded must not be stored in part.
                pairs = _encoded(source.collect())
            except (NotConfigured, NotThere) as error:
                self._log_unavailable(name, str(error), loud=isinstance(error, NotThere))
                self._earlier.pop(name, None)
                continue
            except Unavailable as error:
                if error.overloaded:
                    gathered.trouble(name, error.wait)
                else:
                    # An empty queue or an invalid document is no overload: pauses stay short.
                    gathered.works(name)
                self._log_unavailable(name, str(error), loud=not error.quiet)
                pairs = self._last_documents(name) if keep else []
            except Exception as error:  # a bug in one source must not stop the others
                self._log_unavailable(name, f"failed unexpectedly: {_place(error)}", loud=True)
                gathered.trouble(name)
                pairs = self._last_documents(name) if keep else []
            else:
                gathered.works(name)
                self._log_recovered(name)
                self._earlier[name] = pairs
            gathered.pairs += pairs
        if keep:
            # Two documents of one name would be one file of the cache.
            gathered.pairs = documents.last_of_each(gathered.pairs)
        return gathered

    def _last_documents(self, name: str) -> list[tuple[str, str]]:
        """Return a source's earlier documents, from memory or from the cache."""
        if name in self._earlier or name not in sources.REMOTE:
            return self._earlier.get(name, [])
        # After a restart the cache still has it.
        document = self._cache.read(name)
        if not isinstance(document, dict):
            return []
        keys = self._settings.deployment_key
        # An option of its own, which upstream calls deprecated but reads.
        keys = self._settings.cfn.deployment_key if name == "cfn" else keys
        pairs = documents.explode(name, document, keys, self._log.debug)
        return _encoded(pairs)

    def _take_in(self, pairs: list[tuple[str, str]]) -> tuple[list[str], int | None]:
        """Cache *pairs* and run the command; return the changed keys and the status of round()."""
        try:
            changed = [key for key, text in pairs if self._cache.store(key, text)]
            # All documents are there before the list that names them.
            if changed:
                self._cache.write_list([key for key, _ in pairs])
        except OSError as error:
            self._log.error(f"the cache cannot be written: {error.strerror}")
            return [], 1
        if changed:
            # Before the command, as upstream: the copy has no .last file of this round.
            self._back_up()
        if not changed and not self._settings.force:
            self._log.debug("Nothing has changed.")
            return [], None
        return changed, self._run([self._cache.path(key) for key, _ in pairs], changed)

    def _run(self, paths: list[str], changed: list[str]) -> int:
        command = self._settings.command or ""
        self._log.info(f"{_count(changed)} changed; running the command.")
        # Until allow(): a SIGHUP must not come between the command's success and the commit.
        self._signals.put_off()
        status = self._seams.command(command, paths)
        if status:
            self._log.error(
                f"the command ended with status {status}; it will be run again after the next poll"
            )
        else:
            try:
                for key in changed:
                    self._cache.commit(key)
            except OSError as error:
                self._log.error(f"the cache cannot be written: {error.strerror}")
        self._signals.allow()
        return status

    def _back_up(self) -> None:
        try:
            self._cache.back_up(self._settings.backup_cachedir)
        except OSError as error:
            where = self._settings.backup_cachedir
            self._log.warning(f'the cache cannot be copied to "{where}": {error.strerror}')

    def _sleep(self, pause: float) -> None:
        """Wait; after the shortest pause, a message that arrives ends the wait."""
        first = min(pause, self._settings.shortest)
        # Even a queue that is never empty is not read more often than this.
        time.sleep(first)
        streams = [
            stream
            for _, source in self._sources
            for stream in (getattr(source, "wakes", lambda: None)(),)
            if stream is not None
        ]
        # Data in the buffers of the stream and of TLS does not show in poll(2).
        if any(stream.holds() for stream in streams):
            return
        if not streams:
            time.sleep(pause - first)
            return
        import select

        poll = select.poll()
        for stream in streams:
            poll.register(stream.sock, select.POLLIN)
        poll.poll(int(min(pause - first, LONGEST_POLL) * 1000))

    def _log_unavailable(self, name: str, sentence: str, loud: bool) -> None:
        """Log why a source is unavailable, once and not in every round."""
        repeated = self._complaints.get(name) == sentence
        say = self._log.warning if loud and not repeated else self._log.debug
        say(f'Source "{name}": {sentence}.')
        # Recovery is reported only for a problem that was reported.
        if loud:
            self._complaints[name] = sentence

    def _log_recovered(self, name: str) -> None:
        if self._complaints.pop(name, None) is not None:
            self._log.info(f'Source "{name}" is available again.')


def _encoded(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(key, documents.encode(document)) for key, document in pairs]


def _count(changed: list[str]) -> str:
    return f"{len(changed)} document{'' if len(changed) == 1 else 's'}"


def _place(error: BaseException) -> str:
    """Return an error's type and where it was raised; its text could contain an input."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = type(error).__name__
    if trace is None:
        return name
    code = trace.tb_frame.f_code
    return f"{name} in {os.path.basename(code.co_filename)}:{trace.tb_lineno}"
