"""The options and the output of ``hotplate build``; builds are tested in tests/image."""

from __future__ import annotations

import argparse
import io
import time

import pytest

from hotplate import output
from hotplate.cli import build as verb
from hotplate.cli import main
from hotplate.errors import UsageError
from hotplate.image import build_display, build_request
from hotplate.image.plan import BuildRequest, Layout, Starts
from hotplate.image.progress import BuildProgress


def asked(*words: str) -> BuildRequest:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return verb.request_from(parser.parse_args([*words, "--arch", "amd64"]))


def test_request_has_defaults():
    request = asked()
    assert (request.release, request.groups, request.layout) == (
        "bookworm",
        ("script",),
        Layout.DISK,
    )
    assert request.image.name == "bookworm-disk.qcow2"
    assert request.firmware is Starts.BIOS


def test_groups_are_separated_by_comma_or_by_option():
    assert asked("--group", "script,puppet", "--group", "salt").groups == (
        "script",
        "puppet",
        "salt",
    )


def test_empty_group_is_an_image_without_groups():
    assert asked("--group", "").groups == ()


@pytest.mark.parametrize(
    ("words", "kind"),
    [(["-o", "a.raw"], "raw"), (["-o", "a"], "qcow2"), (["-o", "a", "--type", "raw"], "raw")],
)
def test_type_is_chosen_by_suffix_or_option(words: list[str], kind: str):
    assert asked(*words).image_type == kind


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-o", "a.raw", "--type", "qcow2"], "another type"),
        (["-o", "a.img"], "expected .qcow2, .raw or none"),
        (["-o", "/"], "is a directory"),
        (["--size", "0"], "too small"),
        (["--partition", "--firmware", "uefi"], "whole disk"),
        (["--partition", "--secure-boot"], "whole disk"),
    ],
)
def test_contradicting_options_are_refused(words: list[str], sentence: str):
    with pytest.raises(UsageError, match=sentence):
        asked(*words)


def test_secure_boot_option_is_a_firmware(capsys):
    assert asked("--secure-boot").firmware is Starts.SECURE_BOOT
    assert asked("--firmware", "secure-boot").firmware is Starts.SECURE_BOOT
    with pytest.raises(SystemExit):
        asked("--firmware", "bios", "--secure-boot")
    assert "--secure-boot: not allowed with argument --firmware" in capsys.readouterr().err


def test_arm_has_no_bios():
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    with pytest.raises(UsageError, match="no BIOS"):
        verb.request_from(parser.parse_args(["--arch", "arm64", "--firmware", "bios"]))
    with pytest.raises(UsageError, match='for "amd64" only, not for "arm64"'):
        verb.request_from(parser.parse_args(["--arch", "arm64", "--secure-boot"]))
    request = verb.request_from(parser.parse_args(["--arch", "arm64"]))
    assert request.firmware is Starts.UEFI


@pytest.mark.parametrize(("name", "debian"), [("x86_64", "amd64"), ("aarch64", "arm64")])
def test_architecture_by_the_kernels_name_is_refused(name: str, debian: str):
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    with pytest.raises(UsageError, match=f'"{name}"; Debian calls it "{debian}"'):
        verb.request_from(parser.parse_args(["--arch", name]))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LINES = (
    "Running hooks from /t/hooks/root.d",
    "dib-run-parts Running /t/hooks/root.d/08-debootstrap",
    "dib-run-parts Running /tmp/in_target.d/install.d/50-x",
)


EXPECTED = {"install": 40.0, "done": 100.0}


def test_progress_without_a_terminal_is_plain_lines():
    stream, progress = io.StringIO(), BuildProgress()
    with build_display.Display(progress, stream, expected=EXPECTED):
        for line in LINES:
            progress.feed(line)
    lines = stream.getvalue().splitlines()
    assert [line.split("s  ", 1)[1] for line in lines] == [
        "base system",
        "install  (usually 40 s)",
    ]


def test_warnings_of_elements_are_shown():
    stream, progress = io.StringIO(), BuildProgress()
    warning = "heat-config: warning: no element reads DIB_HEAT_HOOK"
    with build_display.Display(progress, stream, expected={}):
        progress.feed("Expanded element dependencies to: dpkg heat-config")
        progress.feed(f"2026-01-01 00:00:00.000 | {warning}\n")
        progress.feed("2026-01-01 00:00:00.000 | dpkg: warning: ignoring a problem!\n")
        progress.feed("2026-01-01 00:00:00.000 | os-prober: warning: of another program\n")
    assert stream.getvalue().splitlines() == [warning]


def test_progress_on_a_terminal_shows_the_running_hook(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "INTERVAL", 0.01)
    stream, progress = Terminal(), BuildProgress()
    with build_display.Display(progress, stream, expected=EXPECTED):
        for line in LINES[:2]:
            progress.feed(line)
        end = time.monotonic() + 30
        while "root.d/08-debootstrap" not in stream.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    assert "... root.d/08-debootstrap  usually at 100 s [....................]" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(("text", "epoch"), [("", None), ("0", 0), ("1795305600", 1795305600)])
def test_source_date_epoch_is_read(text: str, epoch: int | None):
    assert build_request.source_date_epoch({"SOURCE_DATE_EPOCH": text}) == epoch


@pytest.mark.parametrize("text", ["today", "-1", "1.5", "99999999999", "²"])
def test_invalid_source_date_epoch_is_refused(text: str):
    with pytest.raises(UsageError, match="expected seconds since 1970"):
        build_request.source_date_epoch({"SOURCE_DATE_EPOCH": text})


def test_variables_of_the_environment_without_effect_are_named(monkeypatch, capsys):
    given = {
        "DIB_RELEASE": "trixie",
        "DIB_IMAGE_CACHE": "/elsewhere",
        "ELEMENTS_PATH": "/mine",
        "DIB_GRUB_TIMEOUT": "7",
        "DIB_DEV_USER_PASSWORD": "hunter2",
    }
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    assert main(["build", "--dry-run", "--release", "trixie", "--arch", "amd64"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        f"hotplate build: {name} of the environment has no effect: its value comes from {option}"
        for name, option in (("DIB_IMAGE_CACHE", "--cache"), ("ELEMENTS_PATH", "--element-path"))
    ]
    assert out.count("DIB_GRUB_TIMEOUT=7") == out.count("DIB_GRUB_TIMEOUT") == 1
