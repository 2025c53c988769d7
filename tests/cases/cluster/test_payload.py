"""A case on its way to a worker, and the request that its process there gets."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotplate.cases.cluster.payload import PIECE, Payload, Payloads
from hotplate.cases.cluster.task import CasesPlugin, RunningCase, add_piece
from hotplate.cases.request import Request
from hotplate.cases.table import Case, TemplateChoice
from hotplate.cloud.options import CloudOptions
from hotplate.errors import HostError, Interrupted
from hotplate.image.image_set import ImageSet, SetFile
from hotplate.settings import FirmwareChoice, Settings

TEMPLATE = "heat_template_version: 2018-08-31\nresources: {}\n"


@pytest.fixture
def request_here(tmp_path: Path) -> Request:
    """A request with files of each kind."""
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "all.yaml").write_text("parameters: {}\n")
    (tmp_path / "web.raw").write_text("the image")
    (tmp_path / "db.raw").write_text("another")
    (tmp_path / "t.yaml").write_text(TEMPLATE)
    return Request(
        Settings(artifacts=tmp_path / "artifacts", cache=tmp_path / "cache", memory=2048),
        images=(tmp_path / "web.raw",),
        named_images={"db": tmp_path / "db.raw"},
        cloud=CloudOptions(environment_dir=tmp_path / "env"),
        retry_lost=3,
    )


def test_worker_gets_the_request_with_its_own_files(tmp_path, request_here):
    template = TemplateChoice(tmp_path / "t.yaml")
    case = Case("web", tmp_path / "web.raw", template, {"firmware": "uefi"})
    sent: Payload = pickle.loads(pickle.dumps(Payloads(request_here, "topic").pack(case)))
    there = tmp_path / "there"
    there.mkdir()
    named = {name: there / each.name for name, each in sent.named_images.items()}
    # On a worker these are gone.
    for each in ("env/all.yaml", "t.yaml", "web.raw", "db.raw"):
        (tmp_path / each).unlink()
    request, got = sent.open(there, tmp_path / "cache there", there / sent.image.name, named)
    assert got.name == "web"
    assert got.image == there / "web.raw"
    assert request.named_images == {"db": there / "db.raw"}
    assert got.template.load().template["heat_template_version"] == "2018-08-31"
    assert got.template.file.read_text() == TEMPLATE
    assert got.template.source == str(tmp_path / "t.yaml")
    environments = request.cloud.environment_dir
    assert [each.read_text() for each in environments.iterdir()] == ["parameters: {}\n"]
    settings = got.settings_from(request.settings)
    assert (settings.memory, settings.firmware) == (2048, FirmwareChoice.UEFI)
    assert (settings.artifacts, settings.cache) == (there / "artifacts", tmp_path / "cache there")
    # The command decides about it.
    assert request.retry_lost == 0


def test_only_files_of_images_are_sent(tmp_path, request_here):
    large = tmp_path / "web.raw"
    large.write_bytes(b"x" * PIECE + b"rest")
    payloads = Payloads(request_here, "topic")
    image = payloads.pack(Case("web", large)).image
    assert payloads.piece(image.key, "web.raw", PIECE) == b"rest"
    assert payloads.piece(image.key, "web.raw", 0) == b"x" * PIECE
    for name in ("t.yaml", "../secret", "db.raw"):
        with pytest.raises(KeyError):
            payloads.piece(image.key, name, 0)


class PlayedWorker:
    """Plays Dask's worker, and a command that answers each wish for a piece at once."""

    address = "tcp://there:1"

    def __init__(self, cache: Path, data: bytes) -> None:
        self.plugins = {"hotplate": CasesPlugin(cache, 0)}
        self.data = data
        self.case = RunningCase(
            SimpleNamespace(topic="topic"), "key", self, self.plugins["hotplate"]
        )
        self.wishes: list[int] = []

    def log_event(self, topic: str, wish: dict) -> None:
        """Take a message to the command."""
        assert topic == "topic"
        self.wishes.append(wish["offset"])
        if len(self.wishes) == 2:
            self.case.end(15)
        piece = self.data[wish["offset"] :][:10]
        add_piece(wish["image"], wish["want"], wish["offset"], piece, dask_worker=self)

    def fetch(self, target: Path, *, size: int) -> None:
        """Fetch a file of so many bytes."""
        file = SetFile("web.raw", size, "")
        self.case._fetch(ImageSet((file,)), file, target)


def test_transfer_continues_a_part_and_ends_at_a_signal(tmp_path):
    (tmp_path / "part").write_bytes(b"x" * 5)
    worker = PlayedWorker(tmp_path, b"x" * 5 + b"y" * 100)
    with pytest.raises(Interrupted):
        worker.fetch(tmp_path / "part", size=105)
    assert worker.wishes == [5, 15]
    assert (tmp_path / "part").read_bytes() == b"x" * 5 + b"y" * 20


def test_image_that_became_shorter_is_a_host_error(tmp_path):
    with pytest.raises(HostError, match="the host of the command cannot read"):
        PlayedWorker(tmp_path, b"").fetch(tmp_path / "part", size=5)
