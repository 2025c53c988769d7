"""``hotplate diff``: its output and exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hotplate.cli import main

SBIN = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}


def make(directory: Path, name: str, release: str) -> Path:
    root = directory / f"root-{name}"
    (root / "etc").mkdir(parents=True)
    (root / "usr").mkdir()
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "etc/os-release").write_text(f'PRETTY_NAME="Debian {release}"\n')
    package = f"Package: a\nStatus: install ok installed\nVersion: {release}\x1b[31m\n"
    (root / "var/lib/dpkg/status").write_text(package)
    path = directory / name
    subprocess.run(["mke2fs", "-q", "-F", "-d", root, path, "2M"], check=True, env=SBIN)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two file systems; the second has another version of a package."""
    if shutil.which("mke2fs", path=SBIN["PATH"]) is None:
        pytest.skip("needs mke2fs on this host")
    directory = tmp_path_factory.mktemp("diff")
    return make(directory, "a.raw", "12"), make(directory, "b.raw", "13")


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main(["diff", *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_diff_prints_a_table(images, capsys):
    status, out, _ = run(capsys, *images)
    assert status == 0
    assert "packages: 1 changed\n  ~ a 12 -> 13\n" in out
    assert "  ~ system Debian 12 -> Debian 13\n" in out
    assert "      ~ /var/lib/dpkg/status\n" in out
    assert "\x1b" not in out


def test_image_has_no_difference_to_itself(images, capsys):
    status, out, _ = run(capsys, "--strict", images[0], images[0])
    assert status == 0
    assert out.endswith("no difference\n")


def test_difference_fails_with_strict(images, capsys):
    assert run(capsys, "--strict", *images)[0] == 1


def test_diff_prints_json(images, capsys):
    status, out, _ = run(capsys, "--json", *images)
    document = json.loads(out)
    assert status == 0
    assert document["packages"] == [{"name": "a", "how": "changed", "before": "12", "after": "13"}]
    assert document["same"] is False
    assert [each["files"] > 3 for each in document["images"]] == [True, True]


def test_missing_image_is_a_usage_error(images, tmp_path, capsys):
    status, _, err = run(capsys, images[0], tmp_path / "none.qcow2")
    assert (status, "there is no image" in err) == (2, True)


def test_unreadable_file_system_is_a_host_error(images, tmp_path, capsys):
    (tmp_path / "x.raw").write_bytes(b"XFSB" + bytes(1 << 20))
    status, _, err = run(capsys, images[0], tmp_path / "x.raw")
    # Root's kernel is asked, and refuses this one.
    assert ("does not mount it" if os.geteuid() == 0 else "guestfish") in err
    assert status == 3


def test_html_page_has_the_tables_and_the_sizes(images, tmp_path, capsys):
    page = tmp_path / "diff.html"
    status, out, _ = run(capsys, "--html", page, *images)
    text = page.read_text()
    assert status == 0
    assert "packages: 1 changed" in out
    assert "<h2>size by package</h2>" in text
    assert "<td>changed</td><td>a</td><td>12</td><td>13</td>" in text
    assert "no package" in text


def test_page_in_a_missing_directory_is_wrong_usage(images, tmp_path, capsys):
    status, _, err = run(capsys, "--html", tmp_path / "none" / "diff.html", *images)
    assert (status, "cannot be written: there is no such directory" in err) == (2, True)


def test_unwritable_page_is_a_host_error(images, tmp_path, capsys):
    status, _, err = run(capsys, "--html", tmp_path, *images)
    assert (status, "cannot be written: Is a directory" in err) == (3, True)
