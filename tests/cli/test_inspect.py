"""``hotplate inspect``: its output and exit status."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hotplate.cli import main

SBIN = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
NAME = "Debian \x1b]0;title\x07\x1b[31mred\u202e"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file system with a name that would colour the terminal, and little else."""
    if shutil.which("mke2fs", path=SBIN["PATH"]) is None:
        pytest.skip("needs mke2fs on this host")
    directory = tmp_path_factory.mktemp("inspect")
    root, path = directory / "root", directory / "web.raw"
    (root / "etc").mkdir(parents=True)
    (root / "usr").mkdir()
    (root / "etc/os-release").write_text(f'PRETTY_NAME="{NAME}"\nID=debian\n')
    subprocess.run(["mke2fs", "-q", "-F", "-d", root, path, "2M"], check=True, env=SBIN)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main(["inspect", *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_inspect_prints_a_table_with_faults(image, capsys):
    status, out, _ = run(capsys, image)
    assert status == 0
    assert re.search("^system +Debian red", out, re.MULTILINE)
    assert "What will not work:\n  no-kernel-beside: " in out
    assert "  no-agent: " in out
    assert "\x1b" not in out


def test_suffix_may_be_omitted(image, capsys):
    assert run(capsys, image.with_suffix(""))[0] == 0


def test_findings_fail_with_strict(image, capsys):
    assert run(capsys, "--strict", image)[0] == 1


def test_skipped_findings_do_not_fail_with_strict(image, capsys):
    _, out, _ = run(capsys, "--json", image)
    kinds = [each["kind"] for each in json.loads(out)["findings"]]
    assert len(kinds) > 1
    status, out, _ = run(capsys, "--strict", "--skip", ",".join(kinds[1:]), image)
    assert status == 1
    assert f"  {kinds[0]}: " in out
    assert f"  {kinds[1]}: " not in out
    skip = [f"--skip={kind}" for kind in kinds]
    status, out, _ = run(capsys, "--strict", *skip, image)
    assert (status, "findings  none" in out) == (0, True)


def test_unknown_check_to_skip_is_a_usage_error(image, tmp_path, monkeypatch, capsys):
    status, _, err = run(capsys, "--skip", "machineid", image)
    assert status == 2
    assert 'there is no check "machineid" to skip; near ones: machine-id' in err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hotplate.toml").write_text('skip = ["no-agents"]\n')
    status, _, err = run(capsys, image)
    assert (status, "near ones: no-agent" in err) == (2, True)


def test_finding_has_its_source(image, capsys):
    _, out, _ = run(capsys, image)
    assert "      source: https://" in out


def test_inspect_prints_json(image, capsys):
    status, out, _ = run(capsys, "--json", image)
    document = json.loads(out)
    assert status == 0
    assert document["format"] == 1
    assert document["distribution"]["name"] == "Debian red"
    assert document["agent"] is None
    assert "no-agent" in [each["kind"] for each in document["findings"]]
    assert {"sentence", "mend", "level", "paths"} < set(document["findings"][0])
    assert all(each["reason"] and each["source"] for each in document["findings"])


def test_missing_image_is_a_usage_error(tmp_path, capsys):
    status, _, err = run(capsys, tmp_path / "none.qcow2")
    assert (status, "there is no image" in err) == (2, True)


def test_name_that_begins_with_a_dash_can_be_pasted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, _, err = run(capsys, "--", "-my/web.qcow2")
    assert "ls ./-my; or build one: hotplate build -o ./-my/web.qcow2\n" in err


def test_file_that_is_no_image_fails(tmp_path, capsys):
    (tmp_path / "text.raw").write_text("hello\n" * 100)
    status, _, err = run(capsys, tmp_path / "text.raw")
    assert (status, "is not an image" in err) == (1, True)


def test_unreadable_file_system_is_a_host_error(tmp_path, capsys):
    (tmp_path / "x.raw").write_bytes(b"XFSB" + bytes(1 << 20))
    status, out, err = run(capsys, tmp_path / "x.raw")
    assert status == 3
    assert "xfs, 1 MB" in out
    # Root's kernel is asked, and refuses this one.
    assert ("does not mount it" if os.geteuid() == 0 else "guestfish") in err


@pytest.mark.parametrize(
    ("at", "value", "status", "reason"),
    [
        (0x58, b"\x41\x01", 1, "its superblock is damaged"),
        (0x60, b"\xff\xff", 3, "features that are not known here"),
        (0x60, b"", 1, "there is no system in it"),
    ],
    ids=["damaged", "of a newer kind", "without a system"],
)
@pytest.mark.tool("mkfs.ext4")
def test_unread_file_system_is_a_host_error_only_when_the_image_may_be_good(
    tmp_path, capsys, at: int, value: bytes, status: int, reason: str
):
    path = tmp_path / "x.raw"
    subprocess.run(["/sbin/mkfs.ext4", "-q", path, "4M"], check=True)
    with path.open("r+b") as stream:
        stream.seek(1024 + at)
        stream.write(value)
    done, out, err = run(capsys, path)
    assert (done, "ext4, 4 MB" in out, reason in err) == (status, True, True)


NESTED = b'{"elements":' * 200_000
BESIDE = {
    "a fifo": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "nested deeply": lambda path: path.write_bytes(NESTED),
    "nested a little too deeply": lambda path: path.write_bytes(b'{"built":' * 9 + b"1" + b"}" * 9),
    "too large": lambda path: path.write_bytes(b" " * (16 << 20) + b"{}"),
    "a list": lambda path: path.write_bytes(b"[1]"),
}


@pytest.mark.parametrize("case", BESIDE)
def test_manifest_that_cannot_be_read_counts_as_none(image, tmp_path, case):
    """A manifest beside an image may be any file; it must cause neither a hang nor a traceback.

    Run in a process that can be killed: some would be read for ever.
    """
    path = Path(shutil.copy(image, tmp_path))
    BESIDE[case](path.with_suffix(".manifest.json"))
    command = ["hotplate", "inspect", "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["manifest"] == "none"


def test_inspect_needs_few_open_files(image, tmp_path):
    path = tmp_path / "web.qcow2"
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", image, path], check=True)
    for files, status, complaint in (
        (64, 0, ""),
        (12, 3, "Too many open files\n  hint: ulimit -n 4096"),
    ):
        command = ["sh", "-c", f'ulimit -n {files} && exec hotplate inspect "$0"', path]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, complaint in done.stderr) == (status, True), done.stderr
        assert "[Errno" not in done.stderr


def test_missing_qemu_nbd_is_a_host_error(image, tmp_path, capsys, monkeypatch):
    path = tmp_path / "web.qcow2"
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", image, path], check=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, err = run(capsys, path)
    assert status == 3
    assert "apt-get install --no-install-recommends qemu-utils" in err
