"""``hotplate test --keep`` and ``--pause-on-fail``: the guest stays up until Enter is pressed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_disk
import yaml
from hotplate_command import hotplate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tool("qemu-img"),
    pytest.mark.tool("qemu-system-x86_64"),
]

SECONDS = 600
SERVER = {
    "type": "OS::Nova::Server",
    "properties": {"name": "web", "image": "any", "flavor": "any"},
}
TEMPLATE = {"heat_template_version": "2018-08-31", "resources": {"server": SERVER}}


@pytest.fixture
def command(tmp_path):
    """The arguments of a test of an unbootable image."""
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(TEMPLATE))
    disk = tiny_disk.make(tmp_path / "disk.raw")
    return lambda *words: [
        *("test", str(disk), "-t", str(tmp_path / "t.yaml")),
        *("--artifacts", str(tmp_path / "artifacts"), "--patience", "1", "--memory", "64", *words),
    ]


def test_other_processes_can_connect_until_enter(command):
    running = subprocess.Popen(
        [sys.executable, "-m", "hotplate", *command("--keep")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        output = ""
        for line in running.stdout:
            output += line
            if "press Enter" in line:
                break
        assert 'hotplate: the server "web" is up' in output, output
        assert re.search(r"hotplate: .*FAILED", output)
        where = re.search(r"hotplate monitor --directory (\S+) web", output)[1]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "hotplate", "monitor"),
                "--directory",
                where,
                "web",
                "info name",
            ],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert (done.returncode, done.stdout) == (0, "web\n"), done.stderr
        assert running.poll() is None
        running.stdin.write("\n")
        rest, _ = running.communicate(timeout=SECONDS)
        assert running.returncode == 1
        assert "FAILED" in rest.splitlines()[-1]
        assert not Path(where).exists()
    finally:
        running.kill()
        running.wait()


def test_pause_ends_at_the_end_of_input(command, monkeypatch):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        done = hotplate(*command("--pause-on-fail"))
    assert done.returncode == 1, done.stderr
    assert "press Enter to continue" in done.stdout
