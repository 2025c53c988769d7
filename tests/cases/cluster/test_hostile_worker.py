"""A hostile worker: no data that it sends runs code on the command's host, or escapes its folder.

Anyone who reaches a scheduler without TLS can be a worker.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from played_cases import Played
from played_cluster import cluster

# Loaded by each Python started with it; only the worker named "hostile" acts on it.
PLANT = """
import os, sys
if "hostile" in sys.orig_argv:
    import pathlib, pickle
    from distributed import get_worker, worker
    from hotplate.cases.cluster import case_on_worker
    HERE = pathlib.Path(os.environ["PLAYED_TRIES"])
    HOW = (HERE / "how").read_text()
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

    def run_job(sent):
        job = pickle.loads(sent)
        topic = case_on_worker.topic_of(job.run)
        if HOW == "exception":
            raise Trap("hello")
        if HOW == "warning":
            say("warn", {"message": pickle.dumps(Trap("hello"))})
        if HOW == "event":
            from distributed.protocol import to_serialize
            say(topic, {"what": to_serialize(Trap("hello"))})
        if HOW == "words":
            say(topic, ["what"])
            say(topic, {"what": "doing", "key": 7})
            say(topic, {"what": "begun", "key": str(get_worker().get_current_task())})
            say("print", {"args": ("\\x1b]0;owned\\x07",)})
        if HOW == "file":
            say(topic, {"what": "want", "image": job.image.key, "file": "../secret", "offset": 0,
                        "worker": get_worker().address})
        return Trap("hello") if HOW.endswith("result") else b'{"verdict": []}\\n'

    def add_piece(key, name, offset, data, *, dask_worker):
        (HERE / "arrived").write_bytes(data)
        return -1

    case_on_worker.run_job = run_job
    case_on_worker.add_piece = add_piece
    if HOW == "pickled result":
        get_data = worker.Worker.get_data

        async def pickled(self, comm, keys, who=None, serializers=None):
            return await get_data(self, comm, keys, who, serializers=["pickle"])

        worker.Worker.get_data = pickled
"""
HOW = ["result", "pickled result", "exception", "warning", "event", "words", "file"]


def on_hostile_worker(folder: Path, how: str):
    """Run the command with a single worker, hostile in that way."""
    played = Played(folder / "command")
    (folder / "planted").mkdir()
    (folder / "planted" / "sitecustomize.py").write_text(PLANT)
    (folder / "how").write_text(how)
    (folder / "secret").write_text("of this host")
    with cluster(folder) as on:
        on.start_worker("hostile")
        words = played.images(web="pass")
        return played, played.run(*words, "--on", on.address, "--json", "v.json")


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_data_of_a_worker_runs_no_code_here(tmp_path, how):
    (tmp_path / "command").mkdir()
    played, done = on_hostile_worker(tmp_path, how)
    trapped = tmp_path / "trapped"
    # Code on its own host and its scheduler's does not count.
    ran_in = trapped.read_text().splitlines() if trapped.exists() else []
    assert [each for each in ran_in if "\0test\0" in each] == []
    assert not (tmp_path / "arrived").exists()
    verdict = json.loads((played.folder / "v.json").read_text())
    assert verdict["outcome"] in ("host error", "error", "machine lost")
    if how == "exception":
        assert "the task of the case ended by eval: " in verdict["reasons"][-1]
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_worker_listens_on_one_port_towards_its_scheduler(tmp_path):
    with cluster(tmp_path) as on:
        process = on.start_worker("only")
        log = (tmp_path / "only.log").read_text()
        inodes = {
            each.readlink().name[8:-1]
            for each in Path(f"/proc/{process.pid}/fd").iterdir()
            if str(each.readlink()).startswith("socket:[")
        }
        listening = [
            row.split()[1]
            for table in ("tcp", "tcp6")
            for row in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]
            if row.split()[3] == "0A" and row.split()[9] in inodes
        ]
    port = int(re.search(r'as "tcp://127\.0\.0\.1:(\d+)", and listens there only', log)[1])
    assert listening == [f"0100007F:{port:04X}"]
