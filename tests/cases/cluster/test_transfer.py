"""The result of a case as bytes, other data in its place, and pickles that Dask may load."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import client
from distributed.core import clean_exception, error_message
from distributed.protocol import deserialize, serialize
from distributed.protocol import pickle as dask_pickle
from distributed.scheduler import KilledWorker

from hotplate.cases.cluster import transfer
from hotplate.cases.cluster.transfer import CaseResult
from hotplate.errors import HostError, Outcome
from hotplate.verdict.diagnosis import Diagnosis
from hotplate.verdict.noticed import Noticed
from hotplate.verdict.stages import Stage
from hotplate.verdict.verdict import DeploymentResult, ServerResult, StageTime, Subject, Verdict

STAGES = (
    StageTime(Stage.BOOTED, 3.25, "login: \udc80\n", implied=True),
    StageTime(Stage.NETWORK_UP, 4, visible=False),
    StageTime(Stage.METADATA_SERVED, None),
)
VERDICT = Verdict(
    subject=Subject("web.raw", stand_ins=("a volume",), facts={"accelerator": "tcg"}, case="web"),
    outcome=Outcome.FAILED,
    status="CREATE_FAILED",
    reasons=("one\nhint: two", "three"),
    stages=STAGES,
    outputs={"size": [1, {"a": None}]},
    diagnosis=Diagnosis("unknown", Stage.BOOTED, "nothing", "look", evidence=("a", "b")),
    seconds=7.5,
    servers=(
        ServerResult("id", "web", STAGES, (DeploymentResult("d", "script", "CFN_SIGNAL", None),)),
    ),
    decided_by="id",
    noticed=(Noticed("ran-twice", "it ran twice", fails=True),),
    signal=15,
)


@pytest.mark.parametrize("archive", [b"", b"\n\x1f\x8b\n\xff"])
@pytest.mark.parametrize(
    "verdict", [VERDICT, replace(VERDICT, diagnosis=None, stages=(), servers=(), noticed=())]
)
def test_result_survives_a_round_trip(verdict, archive):
    result = CaseResult(verdict, "tcp://there:1", "/tmp/a", archive, "a complaint\n")
    assert CaseResult.from_bytes(result.to_bytes()) == result


def spoiled(*, at_top: bool = False, **changes):
    about = json.loads(CaseResult(VERDICT, "w").to_bytes().partition(b"\n")[0])
    changed = changes if at_top else {"verdict": {**about["verdict"], **changes}}
    return json.dumps({**about, **changed}).encode()


@pytest.mark.parametrize(
    "data",
    [
        None,
        CaseResult(VERDICT, "w"),
        b"",
        b"[]\n",
        b"{}\n",
        b"\x80\x04N.",
        b"[" * 200_000,
        spoiled(outcome="excellent"),
        spoiled(reasons="one"),
        spoiled(reasons=[1]),
        spoiled(stages=[{"stage": "booted", "seconds": "1"}]),
        spoiled(more=1),
        spoiled(subject=None),
        spoiled(signal="15"),
        spoiled(at_top=True, worker=None),
        spoiled(at_top=True, archive="x"),
    ],
    ids=lambda data: str(data)[:20],
)
def test_malformed_result_error_is_one_sentence(data):
    with pytest.raises(HostError, match="something else than the result of a case: "):
        CaseResult.from_bytes(data)


# -- folders ---------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


def test_folder_is_returned_unchanged(there, here):
    (there / "servers" / "web").mkdir(parents=True)
    (there / "servers" / "web" / "console.log").write_bytes(b"booted\n")
    (there / "qemu.sh").write_text("#!/bin/sh\n")
    (there / "qemu.sh").chmod(0o700)
    (there / "verdict.json").write_text("{}")
    (there / "verdict.json").chmod(0o600)
    (there / "linked.json").hardlink_to(there / "verdict.json")
    (there / "last").symlink_to("qemu.sh")
    transfer.unpack(transfer.pack(there), here)
    files = {str(each.relative_to(here)) for each in here.rglob("*") if each.is_file()}
    assert files == {"servers/web/console.log", "qemu.sh", "verdict.json", "linked.json"}
    assert (here / "servers" / "web" / "console.log").read_bytes() == b"booted\n"
    assert (here / "linked.json").read_text() == "{}"
    assert (here / "qemu.sh").stat().st_mode & 0o777 == 0o700
    assert (here / "verdict.json").stat().st_mode & 0o777 == 0o600


def test_files_beyond_the_limits_are_named(there, here):
    (there / "small").write_bytes(b"1" * 10)
    (there / "large").write_bytes(b"1" * 100)
    transfer.unpack(transfer.pack(there, max_bytes=50), here)
    assert sorted(each.name for each in here.iterdir()) == ["left-out.txt", "small"]
    assert (here / "left-out.txt").read_text() == "large: 100 bytes\n"
    (there / "deep").mkdir()
    (there / "deep" / "file").touch()
    transfer.unpack(transfer.pack(there, max_names=4), here)
    assert (here / "left-out.txt").read_text() == "large: 100 bytes\n"
    # Within the limits of the other end.
    transfer.unpack(transfer.pack(there, max_names=4), here, max_names=4)


def archive_of(*members: tarfile.TarInfo, content: bytes = b"") -> bytes:
    """Return an archive that no honest worker makes."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for each in members:
            each.size = len(content)
            archive.addfile(each, io.BytesIO(content))
    return target.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **more: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for key, value in more.items():
        setattr(made, key, value)
    return made


def sparse() -> bytes:
    """Return an archive with a file of a gigabyte in a kilobyte."""
    headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0"}
    return archive_of(
        member("report.html", pax_headers={**headers, "GNU.sparse.size": str(1 << 30)})
    )


@pytest.mark.parametrize(
    "data",
    [
        archive_of(member("../out")),
        archive_of(member("link", tarfile.SYMTYPE, linkname="..")),
        archive_of(member("link", tarfile.LNKTYPE, linkname="../out")),
        archive_of(member("device", tarfile.CHRTYPE)),
        archive_of(member("folder", tarfile.DIRTYPE)),
        sparse(),
        archive_of(member("large"), content=bytes(1_000_000)),
        archive_of(*(member(f"file{n}") for n in range(30))),
        archive_of(member("/".join("d" * 30))),
        # The name of a file is in a header, which may be as large.
        archive_of(member("x" * 1_000_000)),
        archive_of(member("cut"), content=os.urandom(10_000))[:-5_000],
        gzip.compress(b"no archive"),
        b"no archive",
    ],
    ids=[
        *("outside", "symlink", "hard link", "device", "folder", "sparse", "bytes", "files"),
        *("folders", "header", "cut", "no tar", "no gzip"),
    ],
)
def test_archive_of_a_hostile_worker_is_refused(tmp_path, here, data):
    (tmp_path / "out").write_text("of this host")
    with pytest.raises(tarfile.TarError):
        transfer.unpack(data, here, max_bytes=100_000, max_names=20)
    assert (tmp_path / "out").read_text() == "of this host"
    written = [each for each in here.rglob("*") if each.is_file()]
    assert len(written) <= 20
    assert sum(each.stat().st_size for each in written) <= 200_000


# -- pickles ---------------------------------------------------------------------------------------

PLAIN = [None, True, 1, 2.5, "text", b"bytes", bytearray(b"x"), (1, "two"), [3], {"a": 4}, bytes]


class Trap:
    def __init__(self, reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("value", PLAIN, ids=str)
def test_plain_data_is_loaded(value):
    assert transfer.loads(dask_pickle.dumps(value)) == value


@pytest.mark.parametrize(
    "reduced",
    [
        (os.system, ("true",)),
        (eval, ("1",)),
        (getattr, ("a", "upper")),
        (__import__, ("os",)),
        (object, ()),
        (ValueError, ("x",)),
        (str.format, ("{}", 1)),
    ],
    ids=lambda reduced: reduced[0].__name__,
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_other_pickles_are_refused(reduced, protocol):
    data = pickle.dumps(Trap(reduced), protocol)
    with pytest.raises(transfer.Refused, match="came from the cluster"):
        transfer.loads(data)
    with transfer.only_plain_data():
        for loads in (dask_pickle.loads, client.loads, client.pickle.loads):
            with pytest.raises(transfer.Refused):
                loads(data)


def test_bytes_are_readable_meanwhile_and_all_data_afterwards():
    with transfer.only_plain_data():
        assert deserialize(*serialize(b"a piece")) == b"a piece"
    assert deserialize(*serialize(ValueError("x"))).args == ("x",)


def test_exception_is_named_but_not_created():
    """Dask puts the bytes into an Exception of its own when it cannot load them."""
    sent = error_message(ValueError("no such thing"))
    with transfer.only_plain_data():
        _, error, trace = clean_exception(sent["exception"].data, sent["traceback"].data)
    assert (type(error), trace) == (Exception, None)
    assert transfer.exception_text(error) == "ValueError: no such thing"
    killed = Exception(pickle.dumps(KilledWorker("key", None, 3)))
    assert transfer.exception_text(killed) == "KilledWorker: key"
    assert transfer.exception_text(KeyError("x")) == "KeyError: 'x'"


@pytest.mark.parametrize("data", [b"\xff\xff", b""])
def test_data_without_a_pickle_has_no_exception(data):
    assert transfer.exception_text(Exception(data)) == ""
