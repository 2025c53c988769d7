"""The data of cases sent to workers: options, templates and images; and their needs."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from distributed import Client, Future
from distributed.protocol import pickle as dask_pickle

from hotplate.cases.cluster import abilities
from hotplate.cases.cluster.case_on_worker import add_piece, no_piece
from hotplate.cases.cluster.jobs import Job, SentTemplate, read_all
from hotplate.cases.request import Request
from hotplate.cases.side_by_side import CASE_MIB
from hotplate.cases.table import Case, TemplateChoice
from hotplate.errors import HotplateError
from hotplate.image import image_set, image_url
from hotplate.image.image_set import ImageSet
from hotplate.image.inspect import Image
from hotplate.machine import admission
from hotplate.settings import AcceleratorChoice, Arch, FirmwareChoice, Settings

if TYPE_CHECKING:
    from hotplate.report.artifacts import Artifacts
    from hotplate.verdict.verdict import Verdict

PIECE = 4 * 1024 * 1024
"""The bytes of an image sent at a time."""


@dataclass
class Pending:
    """A case without a verdict yet.

    :param number: of the case among those of the command.
    :param losses: the reasons of earlier losses, one sentence each.
    :param starts: the known starts of the submitted task; a second one means that the
        first worker is gone.
    """

    case: Case
    needs: abilities.Resources
    image: ImageSet
    losses: list[str] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    worker: str = ""
    number: int = 0
    attempt: int = 0
    began: float = field(default_factory=time.monotonic)
    future: Future[bytes] | None = None
    artifacts: Artifacts | None = None


class Parcels:
    """Packs the data of cases: options, templates and images.

    :param run: the command, see :class:`~hotplate.cases.cluster.case_on_worker.Job`.
    :ivar sent: the number of cases sent.
    """

    def __init__(self, request: Request, run: str) -> None:
        self.sent = 0
        self._request = request
        self._run = run
        self._settings = request.settings
        self._images: dict[str, ImageSet] = {}
        self._files: dict[tuple[str, str], Path] = {}
        self._templates: dict[int, TemplateChoice] = {}
        self._needs: dict[tuple[str, tuple[tuple[str, str], ...]], abilities.Resources] = {}
        self._numbers = count()
        folder = request.cloud.environment_dir
        self._environments = None if folder is None else read_all(folder)
        self._others = {name: self._image(path) for name, path in request.named_images.items()}

    def open(self, case: Case) -> Pending:
        """Return a case with its image and its needs.

        :raises UsageError: when a file of the image cannot be sent along.
        :raises OSError: when one cannot be read.
        """
        image = self._of_url(case.url) if case.url else self._image(case.image)
        return Pending(case, self._needed(case), image, number=next(self._numbers))

    def _of_url(self, url: str) -> ImageSet:
        if url not in self._images:
            image = image_set.of_url(url)
            try:
                self._images[url] = image_url.versioned(image)
            except HotplateError:
                # Only the workers may be able to reach it; then each command fetches it anew.
                self._images[url] = replace(image, version=self._run)
        return self._images[url]

    def pack(self, pending: Pending) -> bytes:
        """Return the data of a case to send.

        :raises UsageError: and TemplateError, see :meth:`TemplateChoice.load`.
        """
        case = pending.case
        job = Job(
            self._run,
            self._sent_request(case),
            replace(case, image=Path(pending.image.name), template=self._template(case.template)),
            pending.image,
            self._others,
            self._environments,
        )
        if case.settings:
            job = replace(job, case=replace(job.case, settings={}))
        self.sent += 1
        data: bytes = dask_pickle.dumps(job)
        return data

    def send(self, client: Client, worker: str, image: str, file: str, *, offset: int) -> None:
        """Send a file of an image to a worker, from an offset on."""
        # An unknown name raises KeyError: no other files of this host are sent.
        path = self._files[image, file]
        try:
            with path.open("rb") as stream:
                while offset >= 0:
                    stream.seek(offset)
                    if not (data := stream.read(PIECE)):
                        return
                    there = client.run(add_piece, image, file, offset, data, workers=[worker])
                    offset = there.get(worker, -1)
        except FileNotFoundError as error:
            problem = f'the image "{path}" is not there any more: {error.strerror}'
            client.run(no_piece, image, file, problem, workers=[worker])

    def remember(self, pending: Pending, verdict: Verdict) -> None:
        """Add the stages of a passed case to the history."""
        from hotplate.report.history import History

        if verdict.stages and pending.image.sha256:
            history = History(self._settings.cache / "history.json")
            key = f"{pending.image.sha256}-{pending.case.template.source}"
            history.record(key, verdict.stages)

    def _image(self, path: Path) -> ImageSet:
        name = str(path)
        if name not in self._images:
            self._images[name] = image = image_set.of_file(
                path,
                allow_backing=self._settings.allow_backing,
                checksums=self._settings.cache / "checksums",
            )
            for file in image.files:
                self._files[image.key, file.name] = path.parent / file.name
        return self._images[name]

    def _needed(self, case: Case) -> abilities.Resources:
        """Return the resources that a case needs; a booting guest keeps one processor busy."""
        key = (str(case.image), tuple(sorted(case.settings.items())))
        if key not in self._needs:
            self._needs[key] = needs_of(case.image, case.settings_from(self._settings))
        return self._needs[key]

    def _template(self, choice: TemplateChoice) -> TemplateChoice:
        """Return a template with all its files; a built-in one exists on the worker."""
        if choice.path is None:
            return choice
        if id(choice) not in self._templates:
            self._templates[id(choice)] = SentTemplate(
                name=choice.name,
                note=choice.note,
                loaded=choice.load(),
                text=choice.path.read_bytes(),
                called=choice.source,
            )
        return self._templates[id(choice)]

    def _sent_request(self, case: Case) -> Request:
        """Return the command with the settings of a case, without the parts that stay here."""
        return replace(
            self._request,
            settings=case.settings_from(self._settings),
            images=(),
            templates=(),
            environments=(),
            named_images={},
            run_file=None,
            quiet=True,
            # A lost case is retried on another worker.
            retry_lost=0,
            jobs=None,
        )


def needs_of(image: Path, settings: Settings) -> dict[str, float]:
    """Return the resources that a case needs on its worker.

    :param settings: of the case.
    """
    needs = {
        abilities.CORES: 1.0,
        abilities.MEMORY: float(settings.memory + admission.OVERHEAD_MIB + CASE_MIB),
    }
    if settings.accelerator is AcceleratorChoice.KVM:
        needs[abilities.KVM] = 1.0
    arch = "" if settings.arch is Arch.AUTO else settings.arch.value
    uefi = settings.firmware is FirmwareChoice.UEFI
    # An image that cannot be opened here is reported where it runs.
    with contextlib.suppress(HotplateError, OSError):
        opened = Image.open(image, allow_backing=settings.allow_backing)
        arch = arch or opened.arch
        uefi = uefi or (settings.firmware is FirmwareChoice.AUTO and not opened.bios_bootable)
    if arch:
        needs[abilities.arch(arch)] = 1.0
        if uefi:
            needs[abilities.uefi(arch)] = 1.0
    return needs
