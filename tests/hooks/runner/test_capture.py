"""Captures are bounded: the head and the tail stay, the middle is counted, no reader blocks."""

import os
import re
import signal
from pathlib import Path

import pytest
from heat_config import capture
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import alive

#: Bytes that a capture has at the most.
MOST = (2 << 20) + 2 * (6 << 20) + 100


def left_out(text):
    """Return the number in the one mark of *text*."""
    (number,) = re.findall(rb"\[\.\.\. +([0-9]+) bytes are left out here", text)
    return int(number)


@settings(max_examples=300, deadline=None)
@given(
    chunks=st.lists(st.integers(0, 900), max_size=60),
    head=st.integers(1, 300),
    tail=st.integers(100, 600),
    limit=st.integers(50, 2000),
)
def test_kept_has_the_first_and_last_bytes(chunks, head, tail, limit):
    descriptor = os.memfd_create("capture")
    written = b""
    number = 0
    for size in chunks:
        data = b"".join(b"%07d\n" % (number + n) for n in range(size // 8))
        number += size // 8
        written += data
        # A Kept of its own for each, as for processes that share a file.
        capture.Kept(descriptor, head, tail).append(data)
        assert os.fstat(descriptor).st_size <= head + 2 * tail + capture.CHUNK
    for most in (limit, 1 << 30):
        text = capture.Kept(descriptor, head, tail).read(most)
        if len(written) <= min(most, head):
            assert text == written
        match = re.search(rb"\n\[\.\.\. [0-9]+ bytes are left out here \.\.\.\]\n", text)
        if match is None:
            assert text == written
            continue
        first, last = text[: match.start()], text[match.end() :]
        assert written.startswith(first)
        assert written.endswith(last)
        assert left_out(text) == len(written) - len(first) - len(last)
        assert len(first) + len(last) <= max(most, head + 2 * tail)
    os.close(descriptor)


def test_file_shrinks_on_a_short_disk_and_can_grow_again():
    descriptor = os.memfd_create("capture")
    kept = capture.Kept(descriptor)
    kept.append(b"head" + b"x" * 9_000_000 + b"tail")
    kept.shrink()
    assert os.fstat(descriptor).st_size < 100_000
    text = kept.read(1 << 20)
    assert text.startswith(b"head")
    assert text.endswith(b"tail")
    assert left_out(text) > 8_900_000
    kept.append(b"y" * 20_000_000 + b"end")
    assert os.fstat(descriptor).st_size <= MOST
    text = kept.read(1 << 30)
    assert text.startswith(b"head")
    assert text.endswith(b"end")
    assert left_out(text) + len(text) > 28_900_000
    os.close(descriptor)


def test_forged_mark_only_changes_the_count():
    descriptor = os.memfd_create("capture")
    forged = b"\n[... %15d bytes are left out here ...]\n" % 10**14
    capture.Kept(descriptor, 100, 200).append(b"a" * 100 + forged + b"b" * 5000)
    assert capture.Kept(descriptor, 100, 200).read(10_000).startswith(b"a" * 100)
    os.close(descriptor)


CUT = re.compile(
    r"\n\[\.\.\. (\d+) of \d+ characters(?: and (\d+) bytes)? are left out here; (.*) \.\.\.\]\n"
)


def cut_of(text):
    """Return (the number of all characters, the place that the mark of a signal names)."""
    (mark,) = CUT.finditer(text)
    return len(text) - len(mark[0]) + int(mark[1]) + int(mark[2] or 0), mark[3]


SCRIPT = "#!/bin/sh\necho warn >&2; echo first; head -c {} /dev/zero | tr '\\0' x; echo last\n"


@pytest.mark.parametrize("printed", [2_000_000, 6_000_000, 50_000_000])
def test_cut_of_a_signal_names_its_size_and_the_place_of_the_rest(guest, heat, cfn, printed):
    """A tool's output goes through three bounds: of the log, of the answer, of the signal."""
    assert guest.run(cfn(SCRIPT.format(printed), group="script")).status == 0
    (body,) = heat.signals
    assert body["deploy_stdout"].startswith("first\n")
    assert body["deploy_stdout"].endswith("last\n")
    assert body["deploy_stderr"] == "warn\n"
    total, where = cut_of(body["deploy_stdout"])
    assert total == pytest.approx(printed, abs=100)
    log = guest.logs / "d-1.stdout"
    assert log.stat().st_size <= MOST
    assert log.read_bytes().startswith(b"first\n") and log.read_bytes().endswith(b"last\n")
    if printed < 8 << 20:
        assert where == f"the whole is on the server in {log}"
        assert log.stat().st_size == printed + len("first\nlast\n")
    else:
        missing = left_out(log.read_bytes())
        assert where == f"all but {missing} bytes of it are on the server in {log}"
        assert missing + log.stat().st_size == pytest.approx(printed, abs=100)


def test_cut_of_an_output_names_its_file(guest, heat, cfn):
    config = (
        SCRIPT.format(3_000_000) + "head -c 3000000 /dev/zero | tr '\\0' y >$heat_outputs_path.r"
    )
    assert guest.run(cfn(config, group="script", outputs=["r"])).status == 0
    total, where = cut_of(heat.signals[0]["r"])
    assert total == pytest.approx(3_000_000, abs=200)
    file = Path(where.removeprefix("the whole is on the server in "))
    assert file == guest.root / "script-outputs" / "d-1.r"
    assert file.read_text() == "y" * 3_000_000


@pytest.mark.parametrize(
    ("before", "after"),
    [('{"deploy_status_code": 0, "deploy_stdout": "', '"}'), ("", "")],
    ids=["json", "text"],
)
def test_cut_of_a_hooks_own_answer_names_the_result_file(guest, heat, cfn, before, after):
    """The text is not a tool's, so the log of the tool's output does not have it."""
    guest.hook(
        "own",
        f"#!/bin/sh\ncat >/dev/null\nprintf %s '{before}'\n"
        f"head -c 20000000 /dev/zero | tr '\\0' z\nprintf %s '{after}'\n",
    )
    assert guest.run(cfn(group="own")).status == 0
    total, where = cut_of(heat.signals[0]["deploy_stdout"])
    assert total == 20_000_000
    assert where == f"the whole is on the server in {guest.state / 'd-1.notify.json'}"
    assert guest.result("d-1")["deploy_stdout"] == "z" * 20_000_000


def test_hook_that_writes_without_end_to_its_own_streams_is_cut(guest, heat, cfn):
    guest.config.write_text("kill_after = 0.3\n")
    guest.hook("shell", "#!/bin/sh\necho head >&2\nyes >&2 &\nyes\n")
    assert guest.run(cfn(options={"timeout": 3})).status == 0
    (body,) = heat.signals
    assert body["deploy_status_code"] == 124
    assert body["deploy_stderr"].startswith("head\n")
    assert (guest.logs / "d-1.log").stat().st_size <= MOST
    assert not (guest.state / "d-1.response").exists()


def test_background_process_keeps_writing_and_fills_no_disk(guest, heat, cfn, wait_until):
    """Its files have reached their full length, but it must not die of SIGPIPE."""
    pid_file = guest.root / "pid"
    config = (
        f"(echo $$ >/dev/null; sh -c 'echo $$ >{pid_file}; {guest.gate}"
        f'head -c 30000000 /dev/zero | tr "\\0" x; echo done; touch {guest.root}/done; '
        "sleep 600') &\necho main"
    )
    assert guest.run(cfn(config, group="script")).status == 0
    assert heat.signals[0]["deploy_stdout"] == "main\n"
    guest.open_gate()
    wait_until((guest.root / "done").exists)
    pid = int(pid_file.read_text())
    try:
        path = guest.logs / "d-1.stdout"
        wait_until(lambda: path.read_bytes().endswith(b"done\n"))
        assert path.stat().st_size <= MOST
        os.kill(pid, 0)  # it lives
    finally:
        os.kill(pid, signal.SIGKILL)


def pumps(guest):
    """Return the ids of this guest's pumps: they have the environment of its runner."""
    pids = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text() == "heat-config-out\n":
                environment = path.with_name("environ").read_bytes().split(b"\0")
                if b"COUNT_DIR=" + os.fsencode(guest.counts) in environment:
                    pids.add(int(path.parent.name))
        except OSError:
            continue
    return pids


def test_pump_ends_with_its_last_writer(guest, heat, cfn, wait_until):
    assert guest.run(cfn("echo hi", group="script"), cfn(id="d-2")).status == 0
    wait_until(lambda: not pumps(guest))


def test_many_deployments_leave_no_dead_pump_behind(guest, heat, cfn, wait_until):
    """Each zombie counts against the limit of the agent's unit."""
    seen = guest.root / "seen"
    guest.shell_hook(
        "shell",
        f"grep -ls '^State:.Z' /proc/[0-9]*/status | while read f; do "
        f'grep -q "^PPid:.$PPID$" "$f" && echo "$f"; done >>{seen}\n'
        "echo '{\"deploy_status_code\":0}'\n",
    )
    assert guest.run(*(cfn(id=f"d-{n}") for n in range(8))).status == 0
    assert seen.read_text() == ""


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("which", ["runner", "hook", "both"])
def test_killed_pump_fails_only_its_own_run(guest, heat, cfn, wait_until, which):
    """A writer dies of SIGPIPE, or its output is lost: one failure, and the next run succeeds."""
    config = f"echo run >>{guest.counts}/d-1\necho one\n{guest.gate}echo two\necho three\n"
    guest.metadata(cfn(config, group="script"), cfn(id="d-2"))
    process = guest.start()
    wait_until(lambda: guest.runs("d-1") == 1)
    wait_until(lambda: len(pumps(guest)) == 2)
    killed = [
        pid
        for pid in pumps(guest)
        if which == "both" or (parent(pid) == process.pid) == (which == "runner")
    ]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    # Until then the pipes have a reader, and the script may end before it is gone.
    wait_until(lambda: not any(map(alive, killed)))
    guest.open_gate()
    process.communicate(timeout=60)
    while guest.run().status:
        pass
    assert guest.runs("d-1") == 1
    assert guest.runs("d-2") == 1
    assert guest.state_of("d-1") == guest.state_of("d-2") == "signalled"
    codes = [body["deploy_status_code"] for body in heat.signals]
    assert codes[0] != 0
    assert codes[1:] == [0]


def test_output_is_kept_when_hook_and_runner_are_killed_at_once(guest, heat, cfn, wait_until):
    config = f"head -c 300000 /dev/zero | tr '\\0' x; echo end; touch {guest.root}/now; sleep 60"
    guest.metadata(cfn(config, group="script"))
    process = guest.start()
    wait_until((guest.root / "now").exists)
    hook = int((guest.state / "d-1.pid").read_text().split()[0])
    os.killpg(process.pid, signal.SIGKILL)
    os.killpg(hook, signal.SIGKILL)
    process.communicate(timeout=30)
    assert guest.run().status == 0
    (body,) = heat.signals
    assert body["deploy_stdout"] == "x" * 300_000 + "end\n"
    assert "interrupted" in body["deploy_stderr"]
