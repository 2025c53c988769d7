"""A case on a worker of a Dask cluster: the code that runs there, and its messages.

The worker runs it as ``-j`` does, in a process of its own that ends with the worker. Its progress
is sent as Dask's events of a topic; its verdict and its folder are the result of Dask's task, as
bytes, because data from a worker is never unpickled (:mod:`hotplate.cases.cluster.plain`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import WorkerPlugin, get_worker

from hotplate import __version__
from hotplate.cases import process
from hotplate.cases.cluster import folder_archive
from hotplate.cases.cluster.brought import Brought
from hotplate.cases.cluster.jobs import Job, SentTemplate, topic_of
from hotplate.cases.request import Request
from hotplate.cases.table import Case
from hotplate.children.keeper import Child, Keeper
from hotplate.errors import HostError, HotplateError, Interrupted
from hotplate.image import image_url
from hotplate.image.image_set import ImageSet, SetFile
from hotplate.image.image_store import Fetch, ImageStore
from hotplate.settings import cache_dir
from hotplate.timing.deadline import Deadline, DeadlineExceeded

if TYPE_CHECKING:
    from distributed import Worker

    from hotplate.verdict.verdict import Verdict

PLUGIN = "hotplate"
"""The plug-in's name, by which a task finds it on its worker."""

SAY_SECONDS = 0.5
"""The shortest time between two progress messages of a case."""

ASK_SECONDS = 20.0
"""After so long without a piece of an image the request is repeated."""


class _End:
    """Asks one case to end, from any thread."""

    def __init__(self, key: str, run: str) -> None:
        self.key = key
        self.run = run
        self.number = 0
        self._reader, self._writer = socket.socketpair()

    def ask(self, number: int) -> None:
        """Ask it to end as by a signal; the first one counts."""
        self.number = self.number or number
        with contextlib.suppress(OSError):
            self._writer.send(b".")

    def check(self) -> None:
        """Raise Interrupted once it was asked to end."""
        if self.number:
            raise Interrupted(self.number)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable once it was asked to end."""
        return self._reader.fileno()

    def close(self) -> None:
        """Close both sockets."""
        self._reader.close()
        self._writer.close()


class _Arrival:
    """A file that the submitting host sends piece by piece."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.changed = threading.Condition()
        self.problem = ""

    def add(self, offset: int, data: bytes) -> int:
        """Append a piece; return the present size, at which the next piece has to begin."""
        with self.changed:
            there = self.target.stat().st_size
            if offset == there:
                with self.target.open("ab") as stream:
                    stream.write(data)
                there += len(data)
            self.changed.notify_all()
            return there


class CasesPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Shared state of the cases of one worker; ends them when Dask no longer wants them.

    :param keeper: the parent of their processes.
    :param store: the images of this host.
    """

    name = PLUGIN

    def __init__(self, keeper: Keeper, store: ImageStore) -> None:
        self.keeper = keeper
        self.store = store
        self.arrivals: dict[tuple[str, str], _Arrival] = {}
        self._ends: set[_End] = set()

    def transition(self, key: Any, start: str, finish: str, **_: object) -> None:  # noqa: ARG002 - Dask names it
        """End a case whose task was cancelled, for example because its client is gone."""
        if finish in ("cancelled", "released", "forgotten"):
            self._ask(lambda end: end.key == key, signal.SIGTERM)

    def teardown(self, worker: object) -> None:  # noqa: ARG002 - Dask names it
        """End all when the worker leaves the cluster or is removed from it."""
        self._ask(lambda _: True, signal.SIGTERM)

    def end_run(self, run: str, number: int) -> None:
        """End the cases of one command."""
        self._ask(lambda end: end.run == run, number)

    def _ask(self, which: Callable[[_End], bool], number: int) -> None:
        for each in list(self._ends):
            if which(each):
                each.ask(number)

    @contextlib.contextmanager
    def ends(self, key: str, run: str) -> Iterator[_End]:
        """Register a case that can be asked to end while the context lasts."""
        end = _End(key, run)
        self._ends.add(end)
        try:
            yield end
        finally:
            self._ends.remove(end)
            end.close()


def end_run(run: str, number: int, *, dask_worker: Worker) -> None:
    """End the cases of a command on a worker; run there by ``Client.run``."""
    plugin = dask_worker.plugins.get(PLUGIN)
    if isinstance(plugin, CasesPlugin):
        plugin.end_run(run, number)


def add_piece(key: str, name: str, offset: int, data: bytes, *, dask_worker: Worker) -> int:
    """Append a piece of a file on a worker; run there by ``Client.run``.

    :param key: of the image.
    :param name: of the file.
    :param offset: the position of the piece.
    :return: the present size; -1 when the file is no longer wanted.
    """
    plugin = dask_worker.plugins.get(PLUGIN)
    arrival = plugin.arrivals.get((key, name)) if isinstance(plugin, CasesPlugin) else None
    return arrival.add(offset, data) if arrival is not None else -1


def no_piece(key: str, name: str, problem: str, *, dask_worker: Worker) -> None:
    """Report on a worker that a file cannot be sent; run there by ``Client.run``."""
    plugin = dask_worker.plugins.get(PLUGIN)
    if isinstance(plugin, CasesPlugin) and (arrival := plugin.arrivals.get((key, name))):
        with arrival.changed:
            arrival.problem = problem
            arrival.changed.notify_all()


def run_job(sent: bytes) -> bytes:
    """Run a case, as a task of Dask.

    :param sent: a :class:`Job`, pickled.
    :return: a :class:`~hotplate.cases.cluster.brought.Brought`, even when the case cannot be run.
    """
    worker = get_worker()
    job: Job = pickle.loads(sent)  # noqa: S301 - anyone who reaches a worker can run programs on it anyway
    try:
        return _run(job, worker).to_bytes()
    except HotplateError as error:
        verdict = _of_error(error, job)
        return Brought(verdict, worker.address).to_bytes()
    except Exception as error:
        verdict = _of_error(error, job)
        return Brought(verdict, worker.address, complaint=traceback.format_exc()).to_bytes()


def _of_error(error: BaseException, job: Job) -> Verdict:
    from hotplate.events.log import EventLog
    from hotplate.verdict.verdict import of_error

    return of_error(error, job.case.subject, EventLog(), now=time.monotonic())


def _run(job: Job, worker: Worker) -> Brought:
    plugin = worker.plugins.get(PLUGIN)
    if not isinstance(plugin, CasesPlugin):
        raise HostError(f'the worker "{worker.address}" was not started by "hotplate worker"')
    if job.version != __version__:
        raise HostError(
            f'the worker "{worker.address}" has hotplate {__version__}, and the command '
            f"{job.version}",
            hint=f"pip install 'hotplate[dask]=={job.version}'",
        )
    key = str(worker.get_current_task())
    scratch = Path(worker.local_directory)
    with (
        plugin.ends(key, job.run) as end,
        tempfile.TemporaryDirectory(prefix="hotplate-", dir=scratch) as folder,
    ):
        return JobOnWorker(job, key, worker, plugin, end=end, folder=Path(folder)).run()


class JobOnWorker:
    """Runs one job.

    :param folder: for all its files.
    """

    def __init__(
        self,
        job: Job,
        key: str,
        worker: Worker,
        plugin: CasesPlugin,
        *,
        end: _End,
        folder: Path,
    ) -> None:
        self._job = job
        self._key = key
        self._worker = worker
        self._plugin = plugin
        self._end = end
        self._folder = folder
        self._begun = secrets.token_hex(8)
        self._last = 0.0

    def run(self) -> Brought:
        """Return the verdict with its files; every way in which a case ends is a verdict."""
        self._say("begun", begun=self._begun)
        try:
            with contextlib.ExitStack() as images:
                image = images.enter_context(self._image(self._job.image))
                others = {
                    name: images.enter_context(self._image(each))
                    for name, each in self._job.others.items()
                }
                return self._run(image, others)
        except (HotplateError, OSError, Interrupted, DeadlineExceeded) as error:
            return self._without_verdict(error)

    # -- images ------------------------------------------------------------------------------------

    def _image(self, wanted: ImageSet) -> contextlib.AbstractContextManager[Path]:
        fetch: Fetch
        if wanted.url:
            self._say("doing", text=f"fetching {wanted.url}")
            fetch = image_url.fetch_with(wanted, check=self._end.check)
        else:
            fetch = self._fetch_from_host(wanted)
        return self._plugin.store.use(wanted, fetch)

    def _fetch_from_host(self, wanted: ImageSet) -> Fetch:
        def fetch(file: SetFile, target: Path) -> None:
            where = (wanted.key, file.name)
            self._plugin.arrivals[where] = arrival = _Arrival(target)
            try:
                self._wait_for(wanted, file, arrival)
            finally:
                del self._plugin.arrivals[where]

        return fetch

    def _wait_for(self, wanted: ImageSet, file: SetFile, arrival: _Arrival) -> None:
        """Request a file until it is complete."""
        ask = Deadline(0, "a piece of an image")
        there = arrival.target.stat().st_size
        with arrival.changed:
            while there < file.size:
                self._end.check()
                if arrival.problem:
                    raise HostError(arrival.problem)
                if ask.passed:
                    self._want(wanted, file, there)
                    ask = Deadline(ASK_SECONDS, "a piece of an image")
                arrival.changed.wait(1.0)
                now = arrival.target.stat().st_size
                if now > there:
                    before, there = 10 * there // file.size, now
                    # Each is a line in a log.
                    if (tenths := 10 * there // file.size) > before:
                        self._doing(f"image {wanted.name}: {10 * tenths} % is here")
                    ask = Deadline(ASK_SECONDS, "a piece of an image")

    def _want(self, wanted: ImageSet, file: SetFile, offset: int) -> None:
        self._say(
            "want",
            image=wanted.key,
            file=file.name,
            offset=offset,
            worker=self._worker.address,
        )

    # -- the process -------------------------------------------------------------------------------

    def _run(self, image: Path, others: Mapping[str, Path]) -> Brought:
        directory = self._folder / "cwd"
        directory.mkdir()
        request, case = self._received(image, others)
        channel, child = process.start(
            self._plugin.keeper,
            directory=directory,
            scratch=self._folder,
            environment=_environment(),
            request=request,
            case=case,
            losses=(),
        )
        with channel:
            folder, verdict = self._follow(channel, child)
        try:
            status = child.wait(Deadline(10, "the process of a case to end"))
        except DeadlineExceeded:
            status = child.kill()
        complaint = process.tail(child.stderr)
        if verdict is None:
            why = process.why_without_verdict(status, self._end.number)
            return replace(self._without_verdict(why, folder), complaint=complaint)
        return self._brought(verdict, folder, complaint=complaint)

    def _received(self, image: Path, others: Mapping[str, Path]) -> tuple[Request, Case]:
        """Return the command and the case with the file names of this host."""
        job = self._job
        environments: Path | None = None
        if job.environments is not None:
            environments = self._folder / "environment.d"
            _write_all(environments, job.environments)
        template = job.case.template
        if isinstance(template, SentTemplate):
            file = self._folder / Path(template.called).name
            file.write_bytes(template.text)
            template = replace(template, path=file)
        # The cache is that of this host; all other settings are those of the command.
        settings = replace(
            job.request.settings, artifacts=self._folder / "artifacts", cache=cache_dir()
        )
        request = replace(
            job.request,
            settings=settings,
            named_images=others,
            cloud=replace(job.request.cloud, environment_dir=environments),
        )
        return request, replace(job.case, image=image, template=template)

    def _follow(self, channel: Connection, child: Child) -> tuple[Path | None, Verdict | None]:
        """Forward the messages of the process until it closes its channel; end it on request."""
        folder: Path | None = None
        verdict: Verdict | None = None
        ending: Deadline | None = None
        while True:
            watched: list[Any] = [channel] if ending else [channel, self._end]
            ready = wait(watched, ending.left if ending else None)
            if channel in ready:
                try:
                    message = channel.recv()
                except (EOFError, OSError):
                    return folder, verdict
                if isinstance(message, process.Begun):
                    folder = message.folder
                elif isinstance(message, process.Doing):
                    self._doing(message.text)
                elif isinstance(message, process.Ended):
                    verdict = message.verdict
            elif ready:
                ending = Deadline(process.ENDING_SECONDS, "a case to end")
                child.send_signal(self._end.number)
            elif ending:
                child.kill()
                return folder, verdict

    # -- results -----------------------------------------------------------------------------------

    def _brought(self, verdict: Verdict, folder: Path | None, *, complaint: str = "") -> Brought:
        from hotplate.report.artifacts import DATABASES, Folder

        archive = b""
        if folder is not None:
            # They still exist when the process of the case was killed.
            Folder(folder).remove(DATABASES)
            archive = folder_archive.pack(folder)
        return Brought(verdict, self._worker.address, str(folder or ""), archive, complaint)

    def _without_verdict(self, error: BaseException, folder: Path | None = None) -> Brought:
        return self._brought(_of_error(error, self._job), folder)

    def _doing(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= SAY_SECONDS:
            self._last = now
            self._say("doing", text=text)

    def _say(self, what: str, **more: object) -> None:
        message = {"what": what, "key": self._key, "worker": self._worker.address, **more}
        self._worker.log_event(topic_of(self._job.run), message)


def _environment() -> dict[str, str]:
    """Return a case's environment: this host's, without the settings, which were sent."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HOTPLATE_") or name == "HOTPLATE_CACHE"
    }


def _write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        (folder / Path(name).name).write_bytes(content)
