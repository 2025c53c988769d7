"""Error messages of a failed build, without a build."""

from __future__ import annotations

import platform
from collections import deque
from pathlib import Path

import pytest

from hotplate import host_tools
from hotplate.errors import HostError, HotplateError, ImageError
from hotplate.image import plan, preflight
from hotplate.image.build import Build, BuildError
from hotplate.image.plan import BuildRequest

CLEANING = [
    "Unmount /tmp/x/mnt/proc",
    "INFO diskimage_builder.block_device.level3.mount [-] Called for [mount_mkfs_root]",
]


def failure(tmp_path: Path, *lines: str, offline: bool = False) -> HotplateError:
    made = Build(BuildRequest(tmp_path / "out", tmp_path / "cache", offline=offline), {})
    for line in lines:
        made.progress.feed(line)
    return made._failure(1, deque([*lines, *CLEANING * 30]), tmp_path / "out.log")


@pytest.mark.parametrize(
    ("line", "kind", "sentence"),
    [
        ("tar: ./usr: Cannot write: No space left on device", HostError, "no space left"),
        ("> E: Unable to locate package pupet", ImageError, 'no package "pupet"'),
        ("Temporary failure resolving 'm.example'", HostError, '"m.example"'),
        ("E: Failed to fetch http://m.example/x.deb  404", HostError, "http://m.example/x.deb"),
        ("E: Couldn't download packages: busybox tar", HostError, 'did not give "busybox tar"'),
        ("E: Couldn't download http://m.example/P.xz", HostError, '"http://m.example/P.xz"'),
        (
            "There is a duplicated hook in your elements: a/install.d/50-x",
            ImageError,
            '"a/install.d/50-x"',
        ),
        ("losetup: cannot find an unused loop device", HostError, "no loop device"),
    ],
)
def test_cause_of_a_failed_build_is_reported(tmp_path: Path, line: str, kind: type, sentence: str):
    error = failure(tmp_path, line)
    assert isinstance(error, kind)
    assert sentence in error.message
    assert "out.log" in error.hint


@pytest.mark.parametrize(
    "missed",
    ["Unable to locate package pupet", "Package 'pupet' has no installation candidate"],
)
def test_package_of_a_mirror_that_is_gone_is_not_the_fault_of_the_image(
    tmp_path: Path, missed: str
):
    lists = [
        f"W: Failed to fetch http://m.example/dists/{suite}/InRelease  Unable to connect to m:80:"
        for suite in ("trixie", "trixie-updates")
    ]
    error = failure(tmp_path, *lists, *["going on"] * 200, f"> E: {missed}")
    assert isinstance(error, HostError)
    assert error.message == (
        'the mirror did not give "http://m.example/dists/trixie/InRelease" (Unable to connect to '
        'm:80), so the package "pupet" could not be found'
    )
    error = failure(tmp_path, f"> E: {missed}")
    assert isinstance(error, ImageError)
    assert error.message == 'the release has no package "pupet"'


def test_list_that_was_missed_is_not_taken_for_the_cause_of_another_failure(tmp_path: Path):
    line = "W: Failed to fetch http://m.example/InRelease  Temporary failure resolving 'm.example'"
    error = failure(tmp_path, line, *["going on"] * 200, "it broke")
    assert isinstance(error, BuildError)


def test_file_that_the_mirror_lacks_is_named_with_the_reason(tmp_path: Path):
    error = failure(
        tmp_path,
        "> Err:12 http://m.example/debian trixie/main amd64 cloud-guest-utils all 0.33-1",
        ">   404  Not Found [IP: 192.0.2.1 80]",
        "> E: Failed to fetch http://m.example/debian/pool/c.deb  404  Not Found [IP: 192.0.2.1 1]",
    )
    assert error.message == (
        'the package source did not give "http://m.example/debian/pool/c.deb": '
        "404  Not Found [IP: 192.0.2.1 1]"
    )


def test_build_that_is_offline_is_not_told_to_be_so(tmp_path: Path):
    line = "E: Failed to fetch http://m.example/x.deb  404"
    assert "build with --offline" in failure(tmp_path, line).hint
    hint = failure(tmp_path, line, offline=True).hint
    assert hint.startswith("try again, or build once without --offline; ")


def test_failed_hook_is_named_with_its_last_lines(tmp_path: Path):
    error = failure(tmp_path, "dib-run-parts Running /t/in_target.d/install.d/50-x", "it broke")
    assert isinstance(error, BuildError)
    assert '"install.d/50-x"' in error.message
    assert error.lines[-1] == "it broke"


def test_failed_step_is_named_when_no_hook_was_running(tmp_path: Path):
    error = failure(tmp_path, "Converting image using qemu-img convert", "qemu-img: error")
    assert 'the step "compress"' in error.message


def test_early_line_is_not_taken_for_the_cause(tmp_path: Path):
    error = failure(tmp_path, "E: Unable to locate package optional", *["going on"] * 200)
    assert "optional" not in error.message


def test_missing_tool_error_names_its_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(preflight.ELEMENT_TOOLS, "an-element", ("no-such-tool",))
    monkeypatch.setitem(host_tools.PACKAGES, "no-such-tool", "some-package")
    with pytest.raises(HostError, match="no-such-tool") as raised:
        preflight.check_tools(["an-element"], {})
    assert raised.value.hint == "apt-get install some-package"
    assert raised.value.exit_status == 3


@pytest.mark.parametrize(
    ("answer", "sentence", "hint"),
    [
        (None, "needs arch-test", "apt-get install arch-test qemu-user-static"),
        (1, 'programs for "riscv64" do not run', "update-binfmts --enable"),
        (0, None, None),
    ],
)
def test_foreign_architecture_is_refused_unless_it_runs_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer, sentence, hint
):
    monkeypatch.setattr(plan, "SYSTEM_PATH", str(tmp_path))
    if answer is not None:
        (tmp_path / "arch-test").write_text(f"#!/bin/sh\ntest $1 = riscv64 && exit {answer}\n")
        (tmp_path / "arch-test").chmod(0o755)
    if sentence is None:
        preflight.check_arch("riscv64", {})
        return
    with pytest.raises(HostError, match=sentence) as raised:
        preflight.check_arch("riscv64", {})
    assert hint in raised.value.hint


def test_own_architecture_needs_no_arch_test(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr(plan, "SYSTEM_PATH", str(tmp_path))
    preflight.check_arch(plan.MACHINES[platform.machine()], {})
