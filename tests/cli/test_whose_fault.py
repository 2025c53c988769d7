"""Outcomes by the real command: exit status, verdict, JUnit's kind, and artifacts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_disk
import yaml
from hotplate_command import default_signals, hotplate

from hotplate.cloud.nova import metadata
from hotplate.machine import admission, console
from hotplate.testbed import compute, qemu_maker
from hotplate.trial import trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tool("qemu-img"),
    pytest.mark.tool("qemu-system-x86_64"),
]

SECONDS = 600
GOOD = {"heat_template_version": "2018-08-31", "resources": {}}
REFUSED = {
    "heat_template_version": "2018-08-31",
    "resources": {"it": {"type": "OS::No::Such::Thing"}},
}
NAMELESS = {
    "heat_template_version": "2018-08-31",
    "resources": {
        "web": {"type": "OS::Nova::Server", "properties": {"image": "tiny", "flavor": "any"}},
        "front": {"type": "OS::Nova::Server", "properties": {"image": "front", "flavor": "any"}},
    },
}


@dataclass
class Command:
    """``hotplate test`` on an unbootable disk, in a folder of its own."""

    folder: Path

    def __post_init__(self) -> None:
        tiny_disk.make(self.folder / "tiny.raw")
        (self.folder / "empty.raw").touch()
        (self.folder / "good.yaml").write_text(yaml.safe_dump(GOOD))
        (self.folder / "refused.yaml").write_text(yaml.safe_dump(REFUSED))
        (self.folder / "nameless.yaml").write_text(yaml.safe_dump(NAMELESS))
        (self.folder / "broken.yaml").write_text("resources: [")
        # The files of an earlier run; none of their content may remain.
        (self.folder / "junit.xml").write_text("<stale/>")
        (self.folder / "verdict.json").write_text('"stale"')

    def start(
        self, *words: str, shell: str = "", plant: str = "", **environ: str
    ) -> subprocess.Popen[str]:
        """Begin it.

        :param shell: commands that sh runs before it.
        :param plant: Python code that runs in its process before it.
        """
        program = f"{plant}\nimport sys\nfrom hotplate.cli import main\nsys.exit(main())"
        command = [
            *(sys.executable, "-P", "-c", program, "test"),
            *("--junit", "junit.xml", "--json", "verdict.json"),
            *(words or ("tiny.raw",)),
        ]

        return subprocess.Popen(
            ["sh", "-c", f'{shell or ":"} && exec "$@"', "sh", *command],
            cwd=self.folder,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
        )

    def run(self, *words: str, last: bool = True) -> Result:
        """Run it in this process."""
        files = ("--junit", "junit.xml", "--json", "verdict.json")
        with contextlib.chdir(self.folder):
            done = hotplate("test", *files, *words)
        return self.result(done.returncode, done.stdout, done.stderr, last=last)

    def end(self, process: subprocess.Popen[str], *, last: bool = True) -> Result:
        out, err = process.communicate(timeout=SECONDS)
        return self.result(process.returncode, out, err, last=last)

    def result(self, status: int, out: str, err: str, *, last: bool = True) -> Result:
        verdict = json.loads((self.folder / "verdict.json").read_text())
        root = ET.parse(self.folder / "junit.xml").getroot()
        if last:
            newest = self.folder / "artifacts" / "last"
            runs = [each.name for each in newest.parent.iterdir() if each.name[0] == "2"]
            assert newest.readlink().name == max(runs)
            left = json.loads((newest / "verdict.json").read_text())
            assert left == verdict
            assert (newest / "report.html").exists()
        kinds = {each.tag for each in root.findall("testsuite/testcase/*")} & {"failure", "error"}
        return Result(status, verdict, "".join(kinds), out, err)


@dataclass(frozen=True)
class Result:
    status: int
    verdict: dict[str, object]
    junit: str
    out: str
    err: str


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


WITHOUT_SWTPM = (
    "mkdir bin && ln -sf /usr/sbin/* /usr/bin/* bin/ && rm -f bin/swtpm && export PATH=$PWD/bin"
)

CASES = {
    # name: (words, shell, environment) -> status, outcome, JUnit's kind, a part of the line
    "an image that boots nothing": (
        (["tiny.raw", "--patience", "1"], "", {}),
        (1, "failed", "failure", "FAILED: not reached: booted"),
    ),
    "no image at all": ((["empty.raw"], "", {}), (1, "failed", "failure", "is empty")),
    "a template that Heat refuses": (
        (["tiny.raw", "-t", "refused.yaml"], "", {}),
        (1, "failed", "failure", 'FAILED: Heat refused "refused.yaml"'),
    ),
    "a template that is none": (
        (["tiny.raw", "-t", "broken.yaml"], "", {}),
        (1, "failed", "failure", '"broken.yaml"'),
    ),
    "an image that the template names and that is not there": (
        (["tiny.raw", "--image", "db=tiny.raw", "-t", "nameless.yaml"], "", {}),
        (1, "failed", "failure", 'there is no image "front" to boot; there are "tiny", "db"'),
    ),
    "more memory than there is": (
        (["tiny.raw", "--memory", "100000000"], "", {}),
        (3, "host error", "error", "a machine of 100000000 MiB is more than the"),
    ),
    "more processors than QEMU can": (
        (["tiny.raw", "--cpus", "100000"], "", {}),
        (3, "host error", "error", "QEMU could not start the machine"),
    ),
    "a TPM without swtpm": (
        (["tiny.raw", "--tpm"], WITHOUT_SWTPM, {}),
        (3, "host error", "error", 'the program "swtpm" was not found in PATH'),
    ),
    "too few open files": (
        (["tiny.raw"], "ulimit -n 64", {}),
        (3, "host error", "error", "open files"),
    ),
    "a cache that cannot be": (
        (["tiny.raw"], "", {"HOTPLATE_CACHE": "/proc/nope"}),
        (3, "host error", "error", '"/proc/nope/memory"'),
    ),
    "a temporary directory that sockets cannot be in": (
        (["tiny.raw", "--wiring", "guestfwd"], "mkdir 'a b'", {"TMPDIR": "a b"}),
        (3, "host error", "error", "hint: export TMPDIR=/tmp"),
    ),
}


def play(patch: pytest.MonkeyPatch) -> None:
    """Replace QEMU's guest by a played one."""
    patch.setattr(qemu_maker, "QemuMachine", played_guest().PlayedMachine)
    patch.setattr(qemu_maker.wiring, "choose", played_guest()._choose)


def played_guest() -> Any:
    # Imported late: it imports Heat, which the cloud loads first.
    import played_guest

    return played_guest


def fail_in_subscriber(patch: pytest.MonkeyPatch) -> None:
    def see(_: object, event: Any) -> None:
        if event.kind == "line":
            raise KeyError("boom")

    play(patch)
    patch.setattr(compute.LocalCompute, "_see", see)


def fail_in_console(patch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise KeyError("boom")

    patch.setattr(console.Console, "_read_all", read)


def fail_in_service(patch: pytest.MonkeyPatch) -> None:
    def answer(*_: object) -> None:
        raise RuntimeError("boom")

    def sources(machine: Any) -> dict[str, object]:
        machine.console_says("Kernel panic - not syncing: it had no metadata")
        return {}

    play(patch)
    patch.setattr(metadata.Metadata, "answer", answer)
    patch.setattr(played_guest().PlayedMachine, "_sources", sources)


OURS = {
    # name: what fails, parts of the last line
    "a subscriber": (fail_in_subscriber, 'in the thread "guest-', "KeyError: 'boom'"),
    "the reader of the console": (fail_in_console, 'in the thread "console"', "KeyError: 'boom'"),
    "a service": (fail_in_service, "in the thread", "RuntimeError: boom"),
}


@pytest.mark.parametrize("name", OURS)
def test_fault_in_a_thread_is_no_verdict_on_the_image(command, monkeypatch, name):
    """At once: the guest is not at fault, and would be waited for until the test's time limit.

    A service that fails at one request ends nothing; the guest panics because of it, but is not
    blamed.
    """
    fail, *parts = OURS[name]
    fail(monkeypatch)
    patience = str(SECONDS // 2)
    words = ["tiny.raw", "--patience", patience, "--limit", patience, "--memory", "128"]
    if fail is not fail_in_console:
        words += ["--accelerator", "tcg", "--wiring", "namespace"]
    done = command.run(*words)
    assert (done.status, done.verdict["outcome"], done.junit) == (4, "error", "error"), done
    assert all(each in done.out.splitlines()[-1] for each in parts), done
    assert "Traceback" in done.err
    left = (command.folder / "artifacts" / "last" / "traceback.txt").read_text()
    assert "boom" in left


@pytest.mark.parametrize("name", CASES)
def test_cause_has_its_outcome_and_status(command, monkeypatch, name):
    if name == "more memory than there is" and admission.max_mib() is None:
        pytest.skip("this host lets a process have more memory than there is")
    (words, shell, environ), (status, outcome, kind, line) = CASES[name]
    if shell:
        done = command.end(command.start(*words, shell=shell, **environ))
    else:
        for variable, value in environ.items():
            monkeypatch.setenv(variable, value)
        done = command.run(*words)
    assert (done.status, done.verdict["outcome"], done.junit) == (status, outcome, kind), done
    assert done.verdict["exit_status"] == status
    # The last line is checked as a whole, whatever it contains.
    assert line in done.out.splitlines()[-1]
    assert "Traceback" not in done.err


def test_exception_of_ours_is_an_error(command, monkeypatch):
    def judge(_: object) -> None:
        raise KeyError("boom")

    monkeypatch.setattr(trial.Trial, "judge", judge)
    done = command.run("tiny.raw")
    assert (done.status, done.verdict["outcome"], done.junit) == (4, "error", "error"), done
    assert done.verdict["exit_status"] == 4
    line = "ERROR: hotplate itself is at fault: KeyError: 'boom'"
    assert line in done.out.splitlines()[-1]
    assert "Traceback" in done.err


def test_unwritable_folder_is_a_host_error(command):
    done = command.run("tiny.raw", "--artifacts", "/proc/nope/artifacts", last=False)
    assert (done.status, done.verdict["outcome"], done.junit) == (3, "host error", "error")
    assert done.out.splitlines()[-1].startswith("HOST ERROR: the artifacts cannot be written to")


@pytest.mark.root
def test_full_disk_is_a_host_error(command):
    disk = command.folder / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        done = command.run("tiny.raw", "--artifacts", str(disk), last=False)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert (done.status, done.verdict["outcome"], done.junit) == (3, "host error", "error"), done


def test_unwritable_results_are_a_host_error(command):
    done = command.run("tiny.raw", "--patience", "1", "--junit", "/dev/full")
    assert (done.status, done.verdict["outcome"]) == (3, "failed")
    assert '"/dev/full" cannot be written: No space left on device' in done.err
    assert Path("/dev/full").is_char_device()


def test_closed_reader_does_not_change_the_result(command):
    """The second image is tested, too."""
    tiny_disk.make(command.folder / "second.raw")
    process = command.start("tiny.raw", "second.raw", "--patience", "1")
    process.stdout.close()
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, err
    verdicts = json.loads((command.folder / "verdict.json").read_text())
    assert [each["outcome"] for each in verdicts] == ["failed", "failed"]
    assert (command.folder / "junit.xml").read_text().count("<failure") == 2
    runs = sorted((command.folder / "artifacts").glob("2*"))
    left = [json.loads((each / "verdict.json").read_text()) for each in runs]
    assert {Path(each["image"]).name for each in left} == {"second.raw", "tiny.raw"}
    assert {each["outcome"] for each in left} == {"failed"}
    assert all((each / "report.html").exists() for each in runs)


def test_image_name_may_be_no_utf8(command):
    name = os.fsdecode(b"a\xff.raw")
    tiny_disk.make(command.folder / name)
    done = command.end(command.start(name, "--patience", "1"))
    assert (done.status, done.verdict["outcome"]) == (1, "failed"), done
    assert Path(str(done.verdict["image"])).name == name


OPENING = """
import os, signal
from hotplate.image import inspect
def check(file):
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        signal.pause()
inspect._check_length = check
"""


def test_signal_ends_the_command_while_an_image_is_opened(command):
    """Built-in cases open it before anything else, and a foreign image may take long to open."""
    image = command.folder / "web.qcow2"
    create = ["qemu-img", "create", "-q", "-f", "qcow2", image, "8M"]
    subprocess.run(create, check=True)
    done = command.end(command.start("web.qcow2", plant=OPENING))
    assert done.status == 128 + signal.SIGTERM, done
    assert (done.verdict["outcome"], done.junit) == ("interrupted", "error"), done


def machines_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the QEMU processes of a command: children of its keepers."""

    def children(pid: int) -> list[int]:
        with contextlib.suppress(OSError):
            tasks = Path(f"/proc/{pid}/task").iterdir()
            return [int(each) for task in tasks for each in (task / "children").read_text().split()]
        return []

    machines = []
    for keeper in children(process.pid):
        for pid in children(keeper):
            with contextlib.suppress(OSError):
                if "qemu-system" in Path(f"/proc/{pid}/cmdline").read_text():
                    machines.append(pid)
    return machines


def waited(what: Callable[[], object], process: subprocess.Popen[str]) -> Iterator[None]:
    end = time.monotonic() + SECONDS
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
        yield


def test_machine_killed_twice_is_lost(command):
    process = command.start("tiny.raw", "--patience", "120")
    killed: set[int] = set()

    def booting() -> int:
        """Return in how many tries the firmware has come to the disk."""
        consoles = (command.folder / "artifacts").glob("2*/**/console.log")
        return sum(b"Booting from Hard Disk" in each.read_bytes() for each in consoles)

    while len(killed) < 2:
        # It must have started: a QEMU that does not start is a host error.
        for _ in waited(lambda: booting() > len(killed), process):
            pass
        for pid in set(machines_of(process)) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    done = command.end(process)
    assert (done.status, done.verdict["outcome"], done.junit) == (4, "machine lost", "error"), done
    assert done.out.splitlines()[-1].startswith("MACHINE LOST: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_signal_at_any_moment_leaves_a_verdict(command, number):
    chance = random.Random(str(number))
    process = command.start("tiny.raw", "--patience", "300")
    for _ in waited((command.folder / "artifacts" / "last").exists, process):
        pass
    moment = chance.uniform(0, 8)
    time.sleep(moment)
    seen = machines_of(process)
    process.send_signal(number)
    done = command.end(process)
    assert done.status == 128 + number, (moment, done)
    assert (done.verdict["outcome"], done.junit) == ("interrupted", "error"), (moment, done)
    assert done.verdict["exit_status"] == done.status
    assert done.out.splitlines()[-1] == f"INTERRUPTED: ended by {number.name}"
    for pid in seen:
        assert not Path(f"/proc/{pid}").exists()


AN_IMPORT_THAT_IS_ENDED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "yaml._yaml":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder())
"""


def test_signal_during_an_import_leaves_a_verdict(command):
    """PyYAML cannot be imported again when its own import was interrupted."""
    done = command.end(command.start("tiny.raw", plant=AN_IMPORT_THAT_IS_ENDED))
    assert done.status == 128 + signal.SIGTERM, done
    assert (done.verdict["outcome"], done.junit) == ("interrupted", "error"), done


def test_killed_run_is_reported_as_interrupted(command):
    process = command.start("tiny.raw", "--patience", "300")
    for _ in waited((command.folder / "artifacts" / "last" / "verdict.json").exists, process):
        pass
    process.kill()
    process.communicate()
    assert not (command.folder / "junit.xml").exists()
    left = json.loads((command.folder / "artifacts" / "last" / "verdict.json").read_text())
    assert (left["passed"], left["outcome"]) == (False, "interrupted")
    assert "was killed" in left["reasons"][-1]
