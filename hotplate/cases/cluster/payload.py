"""A case on its way to a worker: the request of the command, with the files of its host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hotplate import __version__
from hotplate.cases.request import Request
from hotplate.cases.table import Case, TemplateChoice
from hotplate.errors import HotplateError
from hotplate.image import image_set, image_url
from hotplate.image.image_set import ImageSet
from hotplate.stacks.template import Template

#: The bytes of an image sent at a time.
PIECE = 4 * 1024 * 1024


@dataclass(frozen=True)
class LoadedTemplate(TemplateChoice):
    """A template that was read on the host of the command, with its files.

    :param loaded: the template.
    :param text: the file itself, for the folder of the run.
    :param source: its name on that host.
    """

    loaded: Template | None = None
    text: bytes = b""
    source: str = ""

    def load(self) -> Template:
        """Return the template read there."""
        assert self.loaded is not None
        return self.loaded


@dataclass(frozen=True)
class Payload:
    """A case as it is sent.

    :param topic: of Dask's events for the progress of the command's cases; unlike that of others.
    :param image: the files of its image.
    :param named_images: the files of the request's other images, by name.
    :param environments: the files of ``--environment-dir``, by name; None without one.
    """

    topic: str
    request: Request
    case: Case
    image: ImageSet
    named_images: Mapping[str, ImageSet]
    environments: Mapping[str, bytes] | None
    version: str = __version__

    def open(
        self, folder: Path, cache: Path, image: Path, named: Mapping[str, Path]
    ) -> tuple[Request, Case]:
        """Return the request and the case with the files of this host, a worker.

        :param folder: for its files.
        """
        cloud, template = self.request.cloud, self.case.template
        if self.environments is not None:
            cloud = replace(cloud, environment_dir=folder / "environment.d")
            (folder / "environment.d").mkdir(mode=0o700)
            for name, content in self.environments.items():
                # Only the last part of a name from another host: it cannot lead out of the folder.
                (folder / "environment.d" / Path(name).name).write_bytes(content)
        if isinstance(template, LoadedTemplate):
            template = replace(template, path=folder / Path(template.source).name)
            template.file.write_bytes(template.text)
        # All other settings are those of the command.
        settings = replace(self.request.settings, artifacts=folder / "artifacts", cache=cache)
        request = replace(self.request, settings=settings, named_images=named, cloud=cloud)
        return request, replace(self.case, image=image, template=template)


class Payloads:
    """The data of a command's cases; each file of this host is read once.

    :param topic: of the command, see :class:`Payload`.
    :raises UsageError: when a named image cannot be sent.
    :raises OSError: when a file cannot be read.
    """

    def __init__(self, request: Request, topic: str) -> None:
        self._request = request
        self._topic = topic
        self._images: dict[str, ImageSet] = {}
        self._files: dict[tuple[str, str], Path] = {}
        self._templates: dict[int, TemplateChoice] = {}
        self._environments: dict[str, bytes] | None = None
        if folder := request.cloud.environment_dir:
            self._environments = {each.name: each.read_bytes() for each in folder.glob("*.yaml")}
        self._named = {name: self._image("", path) for name, path in request.named_images.items()}
        # The rest of the request is done here; a lost case is retried on another worker.
        self._sent = replace(
            request,
            images=(),
            templates=(),
            environments=(),
            named_images={},
            run_file=None,
            jobs=None,
            quiet=True,
            retry_lost=0,
        )

    def pack(self, case: Case) -> Payload:
        """Return a case as it is sent.

        :raises UsageError: when a file of the image cannot be sent along; and TemplateError, see
            :meth:`TemplateChoice.load`.
        :raises OSError: when one cannot be read.
        """
        image = self._image(case.url, case.image)
        sent = replace(case, image=Path(image.name), template=self._template(case.template))
        return Payload(self._topic, self._sent, sent, image, self._named, self._environments)

    def piece(self, image: str, file: str, offset: int) -> bytes:
        """Return a piece of a file.

        :raises KeyError: for a file of no image: no other files of this host are sent.
        :raises OSError: when it cannot be read.
        """
        with self._files[image, file].open("rb") as stream:
            stream.seek(offset)
            return stream.read(PIECE)

    def _image(self, url: str, path: Path) -> ImageSet:
        name = url or str(path)
        if name not in self._images:
            self._images[name] = self._of_url(url) if url else self._of_file(path)
        return self._images[name]

    def _of_url(self, url: str) -> ImageSet:
        image = image_set.of_url(url)
        try:
            return image_url.versioned(image)
        except HotplateError:
            # Only the workers may be able to reach it; then each command fetches it anew.
            return replace(image, version=self._topic)

    def _of_file(self, path: Path) -> ImageSet:
        image = image_set.of_file(path, **self._request.settings.reading)
        for file in image.files:
            self._files[image.key, file.name] = path.parent / file.name
        return image

    def _template(self, choice: TemplateChoice) -> TemplateChoice:
        """Return a template with all its files; a built-in one exists on the worker."""
        if choice.path is None:
            return choice
        # By identity: a template has a mapping, and so no hash. The cases keep it alive.
        if id(choice) not in self._templates:
            self._templates[id(choice)] = LoadedTemplate(
                name=choice.name,
                note=choice.note,
                loaded=choice.load(),
                text=choice.path.read_bytes(),
                source=choice.source,
            )
        return self._templates[id(choice)]
