"""A case on a worker of a Dask cluster: the function that runs there.

The worker runs it as ``-j`` does, in a process of its own that ends with the worker. Its start, and
the pieces of images that it wants, are Dask's events of a topic; its verdict and its folder are the
result of Dask's task.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import signal
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from hotplate import __version__
from hotplate.cases.cluster import transfer
from hotplate.cases.cluster.payload import Payload
from hotplate.cases.cluster.transfer import CaseResult
from hotplate.cases.request import Request
from hotplate.cases.side_by_side import TICK_SECONDS, CaseEnd, SideBySide
from hotplate.cases.table import Case
from hotplate.errors import HostError, Interrupted, is_unforeseen
from hotplate.events.log import EventLog
from hotplate.image import image_url
from hotplate.image.image_set import ImageSet, SetFile
from hotplate.image.image_store import ImageStore
from hotplate.interrupts import Interrupts
from hotplate.report.board import Board
from hotplate.verdict.verdict import of_error


class CasesPlugin(WorkerPlugin):
    """The cases of one worker; ends them when Dask no longer wants them.

    :param cache: of this host.
    :param image_bytes: the limit of all images in it.
    :ivar pieces: the awaited ones of files, by image, name and offset.
    """

    name = "hotplate"

    def __init__(self, cache: Path, image_bytes: int) -> None:
        self.cache = cache
        self.store = ImageStore(cache, limit=image_bytes)
        self.pieces: dict[tuple[str, str, int], concurrent.futures.Future[bytes]] = {}
        self.running: dict[str, RunningCase] = {}

    def transition(self, key: Any, start: str, finish: str, **_: object) -> None:  # noqa: ARG002 - Dask names it
        """End a case whose task was cancelled, for example because its client is gone."""
        # Called in the loop of the worker; the thread of the case sees the signal within
        # TICK_SECONDS.
        running = self.running.get(key)
        if running is not None and finish in ("cancelled", "released", "forgotten"):
            running.end(signal.SIGTERM)

    def teardown(self, worker: object) -> None:  # noqa: ARG002 - Dask names it
        """End all when the worker leaves the cluster or is removed from it."""
        # A copy, because the threads of ended cases remove theirs meanwhile.
        for each in list(self.running.values()):
            each.end(signal.SIGTERM)


def _plugin(worker: Worker) -> CasesPlugin:
    plugin = worker.plugins.get(CasesPlugin.name)
    if isinstance(plugin, CasesPlugin):
        return plugin
    raise HostError(f'the worker "{worker.address}" was not started by "hotplate worker"')


def end_cases(topic: str, number: int, *, dask_worker: Worker) -> None:
    """End the cases of a command on a worker, as by a signal; run there by ``Client.run``."""
    for each in list(_plugin(dask_worker).running.values()):
        if each.sent.topic == topic:
            each.end(number)


def add_piece(image: str, name: str, offset: int, data: bytes, *, dask_worker: Worker) -> None:
    """Hand in a piece of a file on a worker that waits for it; run there by ``Client.run``."""
    if piece := _plugin(dask_worker).pieces.pop((image, name, offset), None):
        piece.set_result(data)


def run_case(sent: Payload) -> bytes:
    """Run a case, as a task of Dask, which pickles it on its way here; the answer is no pickle.

    :return: a :class:`~hotplate.cases.cluster.transfer.CaseResult`; every way in which a case ends
        is one.
    """
    worker = get_worker()
    try:
        plugin = _plugin(worker)
        return RunningCase(sent, str(worker.get_current_task()), worker, plugin).run().to_bytes()
    except (Exception, Interrupted) as error:
        complaint = traceback.format_exc() if is_unforeseen(error) else ""
        verdict = of_error(error, sent.case.subject, EventLog(), now=time.monotonic())
        return CaseResult(verdict, worker.address, complaint=complaint).to_bytes()


@dataclass(eq=False)
class RunningCase:
    """Runs one case on its worker.

    :param key: of its task.
    """

    sent: Payload
    key: str
    worker: Worker
    plugin: CasesPlugin
    interrupts: Interrupts = field(default_factory=Interrupts)

    def end(self, number: int) -> None:
        """Ask it to end as by a signal, from any thread; the first one counts."""
        self.interrupts.came = self.interrupts.came or number

    def run(self) -> CaseResult:
        """Return the verdict with its files.

        :raises HostError: when the command has another version of hotplate.
        """
        if self.sent.version != __version__:
            raise HostError(
                f'the worker "{self.worker.address}" has hotplate {__version__}, and the command '
                f"{self.sent.version}",
                hint=f"pip install 'hotplate[dask]=={self.sent.version}'",
            )
        with contextlib.ExitStack() as ends:
            made = tempfile.TemporaryDirectory(prefix="hotplate-", dir=self.worker.local_directory)
            folder = Path(ends.enter_context(made))
            self.plugin.running[self.key] = self
            ends.callback(self.plugin.running.pop, self.key)
            self._say(begun=self.key)
            image = ends.enter_context(self._image(self.sent.image))
            named = {
                name: ends.enter_context(self._image(each))
                for name, each in self.sent.named_images.items()
            }
            return self._test(*self.sent.open(folder, self.plugin.cache, image, named))

    def _test(self, request: Request, case: Case) -> CaseResult:
        """Run the case in a process of its own."""
        ends: list[CaseEnd] = []
        board = Board(io.StringIO(), quiet=True)
        SideBySide(request, 1, interrupts=self.interrupts, board=board, on_end=ends.append).run(
            [case]
        )
        if not ends:
            raise Interrupted(self.interrupts.came)
        end = ends[0]
        folder, archive = str(end.folder or ""), transfer.pack(end.folder) if end.folder else b""
        return CaseResult(end.verdict, self.worker.address, folder, archive, end.complaint)

    # -- images ------------------------------------------------------------------------------------

    def _image(self, wanted: ImageSet) -> contextlib.AbstractContextManager[Path]:
        if wanted.url:
            fetch = image_url.fetch_with(wanted, check=self.interrupts.check)
            return self.plugin.store.use(wanted, fetch)
        return self.plugin.store.use(wanted, lambda file, path: self._fetch(wanted, file, path))

    def _fetch(self, wanted: ImageSet, file: SetFile, target: Path) -> None:
        """Request the rest of a file from the host of the command, piece by piece."""
        # For appending: an earlier fetch may have left a part, which is continued.
        with target.open("ab") as stream:
            while (offset := stream.tell()) < file.size:
                self.interrupts.check()
                stream.write(self._piece(wanted.key, file.name, offset))

    def _piece(self, image: str, name: str, offset: int) -> bytes:
        where = (image, name, offset)
        piece = self.plugin.pieces[where] = concurrent.futures.Future[bytes]()
        try:
            self._say(want=name, image=image, offset=offset)
            while not concurrent.futures.wait([piece], timeout=TICK_SECONDS).done:
                self.interrupts.check()
        finally:
            self.plugin.pieces.pop(where, None)
        if data := piece.result():
            return data
        raise HostError(f'the host of the command cannot read the image\'s file "{name}" any more')

    def _say(self, **content: object) -> None:
        """Send the command an event of a case."""
        self.worker.log_event(self.sent.topic, {"worker": self.worker.address, **content})
