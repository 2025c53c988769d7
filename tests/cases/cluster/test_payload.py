"""A case on its way to a worker, and the request that its process there gets."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hotplate.cases.cluster.payload import PIECE, Payload, Payloads
from hotplate.cases.request import Request
from hotplate.cases.table import Case, TemplateChoice
from hotplate.cloud.options import CloudOptions
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
    sent: Payload = pickle.loads(Payloads(request_here, "topic").pack(case))
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
    image = payloads.image_of(Case("web", large))
    assert payloads.piece(image.key, "web.raw", PIECE) == b"rest"
    assert payloads.piece(image.key, "web.raw", 0) == b"x" * PIECE
    for name in ("t.yaml", "../secret", "db.raw"):
        with pytest.raises(KeyError):
            payloads.piece(image.key, name, 0)
