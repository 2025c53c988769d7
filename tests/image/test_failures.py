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


def failure(tmp_path: Path, *lines: str) -> HotplateError:
    made = Build(BuildRequest(tmp_path / "out", tmp_path / "cache"), {})
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
