"""A hostile worker: no data that it sends runs code on the command's host, or escapes its folder.

Anyone who reaches a scheduler without TLS can be a worker.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from played_cases import Played
from played_cluster import Cluster, cluster

# Loaded by each Python started with it; only the worker named "hostile" acts on it.
PLANT = """
import os, sys
if "hostile" in sys.orig_argv:
    import gzip, pathlib, pickle, tarfile
    from distributed import get_worker, worker
    from hotplate.cases.cluster import task, transfer
    from hotplate.errors import Outcome
    from hotplate.verdict.verdict import Verdict
    HERE = pathlib.Path(os.environ["PLAYED_TRIES"])
    # Dask loads an exception at the worker first, and sends only what is one then.
    NOTE = (
        "open(%r, 'a').write(open('/proc/self/cmdline').read() + chr(10)) and ValueError('hello')"
    )

    class Trap(Exception):
        def __reduce__(self):
            return eval, (NOTE % str(HERE / "trapped"),)

    def say(topic, message):
        told = {"op": "log-event", "topic": topic, "msg": message}
        loop = get_worker().loop
        loop.add_callback(get_worker().batched_send, told)

    def run_case(sent):
        how = (HERE / "how").read_text()
        key, me = str(get_worker().get_current_task()), {"worker": get_worker().address}
        if how == "exception":
            raise Trap("hello")
        if how == "warning":
            say("warn", {"message": pickle.dumps(Trap("hello"))})
        if how == "event":
            from distributed.protocol import to_serialize
            say(sent.topic, {"begun": to_serialize(Trap("hello"))})
        if how == "words":
            say(sent.topic, ["begun"])
            say(sent.topic, {**me, "begun": 7})
            say(sent.topic, {"begun": key})
            say(sent.topic, {**me, "begun": key, "more": 1})
            say("print", {"args": ("\\x1b]0;owned\\x07",)})
        if how == "file":
            wanted = {"image": sent.image.key, "want": "../secret", "offset": 0}
            say(sent.topic, {**me, **wanted})
        if how == "archive":
            files = gzip.compress(tarfile.TarInfo("folder/" * 20_000 + "file").tobuf())
            verdict = Verdict(sent.case.subject, Outcome.HOST, "", ("hello",), ())
            return transfer.CaseResult(verdict, me["worker"], "", files).to_bytes()
        return Trap("hello") if how.endswith("result") else b'{"verdict": []}\\n'

    def add_piece(*words, dask_worker):
        (HERE / "arrived").write_text(repr(words))

    task.run_case = run_case
    task.add_piece = add_piece
    get_data = worker.Worker.get_data

    async def pickled(self, comm, keys, who=None, serializers=None):
        if (HERE / "how").read_text() == "pickled result":
            serializers = ["pickle"]
        return await get_data(self, comm, keys, who, serializers=serializers)

    worker.Worker.get_data = pickled
"""
HOW = ["result", "pickled result", "exception", "warning", "event", "words", "file", "archive"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a single worker, which is hostile in the way that the file "how" names."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "planted").mkdir()
    (folder / "planted" / "sitecustomize.py").write_text(PLANT)
    (folder / "how").write_text("")
    (folder / "secret").write_text("of this host")
    with cluster(folder) as on:
        on.start_worker("hostile")
        yield on


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_data_of_a_worker_runs_no_code_here(hostile, tmp_path, how):
    played = Played(tmp_path)
    (hostile.folder / "how").write_text(how)
    trapped = hostile.folder / "trapped"
    trapped.unlink(missing_ok=True)
    done = played.run(*played.images(web="pass"), "--on", hostile.address, "--json", "v.json")
    # Code on its own host and its scheduler's does not count.
    ran_in = trapped.read_text().splitlines() if trapped.exists() else []
    assert [each for each in ran_in if "\0test\0" in each] == []
    assert not (hostile.folder / "arrived").exists()
    verdict = json.loads((played.folder / "v.json").read_text())
    assert verdict["outcome"] in ("host error", "error", "machine lost")
    if how == "exception":
        assert "the task of the case ended by eval: " in verdict["reasons"][-1]
    if how == "archive":
        assert "hotplate test: the archive has too many files" in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_worker_listens_on_one_port_towards_its_scheduler(hostile):
    process = hostile.workers["hostile"]
    log = (hostile.folder / "hostile.log").read_text()
    inodes = set()
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        # Dask opens and closes files of /proc all the time.
        with contextlib.suppress(FileNotFoundError):
            inodes.add(str(each.readlink()).removeprefix("socket:[").removesuffix("]"))
    listening = [
        row.split()[1]
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]
        if row.split()[3] == "0A" and row.split()[9] in inodes
    ]
    port = int(re.search(r'as "tcp://127\.0\.0\.1:(\d+)", and listens there only', log)[1])
    assert listening == [f"0100007F:{port:04X}"]
