"""``hotplate build``: build an image with one short command."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TextIO

from hotplate.cli.arguments import cache_of
from hotplate.errors import ImageError, UsageError
from hotplate.image.build import Build, BuildError, BuildResult
from hotplate.image.plan import MACHINES, BuildRequest, Kernel, Layout, Starts
from hotplate.image.preflight import Preflight
from hotplate.image.progress import BuildProgress

TYPES = ("qcow2", "raw")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate build``."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the image to write (RELEASE-LAYOUT)"
    )
    parser.add_argument(
        "--release",
        default="bookworm",
        help="Debian release by code name, testing or unstable (default: %(default)s)",
    )
    parser.add_argument(
        "--group",
        action="append",
        metavar="GROUP[,GROUP...]",
        help="software-config groups the image can run (default: script)",
    )
    parser.add_argument(
        "--firmware",
        choices=[firmware.value for firmware in Starts],
        help="firmware that starts a whole disk (default: bios; on ARM, uefi)",
    )
    parser.add_argument(
        "--arch",
        default=this_machine(),
        help="architecture, as Debian calls it (default: %(default)s)",
    )
    parser.add_argument("--type", choices=TYPES, help="image format (default: qcow2)")
    add_content_arguments(parser)
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="where downloads and base systems are kept"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the disk-image-create line with the DIB_ variables that take effect, and stop",
    )


def add_content_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options for an image's content, besides its release and its groups."""
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument(
        "--disk",
        dest="layout",
        action="store_const",
        const=Layout.DISK,
        default=Layout.DISK,
        help="a whole disk with partition table and boot loader (default)",
    )
    layout.add_argument(
        "--partition",
        dest="layout",
        action="store_const",
        const=Layout.PARTITION,
        help="one file system, with kernel and initrd beside it",
    )
    parser.add_argument(
        "--size", type=int, metavar="GIB", help="size of the disk (default: fitted to the content)"
    )
    parser.add_argument(
        "--element",
        action="append",
        default=[],
        metavar="NAME",
        help="add an element; may be given several times",
    )
    parser.add_argument(
        "--element-path",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="search this directory for elements first; may be given several times",
    )
    parser.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="add a package; may be given several times",
    )
    parser.add_argument(
        "--kernel",
        choices=[kernel.value for kernel in Kernel],
        default=Kernel.CLOUD.value,
        help="cloud: small, for virtual machines; generic: all drivers (default: %(default)s)",
    )
    parser.add_argument(
        "--install-type",
        choices=("slim", "package"),
        default="slim",
        help="the agent: ours in the standard library, or upstream's from the release "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--no-cloud-init",
        action="store_true",
        help="leave cloud-init out; a small program finds Heat's metadata instead",
    )
    parser.add_argument(
        "--snapshot",
        default="",
        metavar="DATE",
        help="install from this day or time of the archive (20251101, 20251101T120000Z); for hosts "
        "whose mirror is an archive of snapshots, such as Debian's own (not tried)",
    )
    parser.add_argument("--offline", action="store_true", help="use only what is cached")


def request_from(args: argparse.Namespace) -> BuildRequest:
    """Return the request of the command line.

    :raises UsageError: when its parts contradict each other.
    """
    output: Path = args.output or Path(f"{args.release}-{args.layout.value}")
    suffix = output.suffix.lstrip(".")
    if suffix in TYPES and args.type not in (None, suffix):
        raise UsageError(f'"{output}" has the suffix of another type than --type {args.type}')
    if not output.name or output.is_dir():
        raise UsageError(f'"{output}" is a directory; name the image file to write')
    if args.firmware and args.layout is Layout.PARTITION:
        raise UsageError("--firmware is for a whole disk; a partition is given its kernel")
    if args.arch != "amd64" and args.firmware == "bios":
        raise UsageError(f'"{args.arch}" machines have no BIOS; use --firmware uefi')
    if args.size is not None and args.size < 1:
        raise UsageError(f"--size {args.size} is too small; expected GiB, at least 1")
    groups = [name for given in args.group or ["script"] for name in given.split(",") if name]
    return BuildRequest(
        output=output,
        cache=cache_of(args),
        release=args.release,
        groups=tuple(groups),
        layout=args.layout,
        kernel=Kernel(args.kernel),
        firmware=Starts(args.firmware or ("bios" if args.arch == "amd64" else "uefi")),
        arch=args.arch,
        image_type=args.type or (suffix if suffix in TYPES else "qcow2"),
        elements=tuple(args.element),
        packages=tuple(args.package),
        element_path=tuple(args.element_path),
        install_type=args.install_type,
        cloud_init=not args.no_cloud_init,
        offline=args.offline,
        size=args.size,
        snapshot=args.snapshot,
        epoch=source_date_epoch(os.environ),
    )


def source_date_epoch(environ: Mapping[str, str]) -> int | None:
    """Return the value of ``SOURCE_DATE_EPOCH``, None when it is not set.

    Follows https://reproducible-builds.org/specs/source-date-epoch/.

    :raises UsageError: when it is no number of seconds.
    """
    text = environ.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 32):
        raise UsageError(f'SOURCE_DATE_EPOCH is "{text}"; expected seconds since 1970')
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Build an image, or show the commands; return the exit status."""
    request = request_from(args)
    preflight = Preflight(request, os.environ)
    if args.dry_run:
        preflight.check_request()
    else:
        preflight.check()
    build = Build(request, os.environ)
    if args.dry_run:
        print(build.shell())
        return 0
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        result = build_shown(build)
        _report(result)
        _leave_bill(result, request.cache / "checksums")
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def this_machine() -> str:
    """Return the architecture of this host, by Debian's name."""
    return MACHINES.get(platform.machine(), "amd64")


def build_shown(build: Build, *, quiet: bool = False) -> BuildResult:
    """Build an image, showing its progress, and the last lines when it fails.

    :param quiet: do not show the progress.
    :raises HotplateError: as :meth:`~hotplate.image.build.Build.run` does.
    """
    shown = contextlib.nullcontext() if quiet else Display(build.progress, sys.stdout)
    try:
        with shown:
            return build.run()
    except BuildError as error:
        for line in error.lines:
            print(f"  | {line}", file=sys.stderr)
        raise


class Display:
    """Shows the progress of a build: a line for each step, and on a terminal the present action.

    :param stream: the output; only a terminal gets the changing line.
    """

    EVERY = 0.1

    def __init__(self, progress: BuildProgress, stream: TextIO) -> None:
        self._progress = progress
        self._stream = stream
        self._live = stream.isatty()
        self._shown = 0.0

    def __enter__(self) -> Display:
        self._progress.on_step = self._step
        if self._live:
            self._progress.on_line = self._now
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _step(self, name: str, seconds: float) -> None:
        self._clear()
        print(f"{seconds:7.1f} s  {name}", file=self._stream, flush=True)

    def _now(self) -> None:
        seconds = self._progress.elapsed
        if seconds - self._shown < self.EVERY:
            return
        self._shown = seconds
        columns = shutil.get_terminal_size().columns
        text = f"{seconds:7.1f} s  ... {self._progress.script or self._progress.step}"
        self._stream.write(f"\r\x1b[K{text[: columns - 1]}")
        self._stream.flush()


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _leave_bill(result: BuildResult, checksums: Path) -> None:
    """Write the bill of materials; an image that cannot be read here is good without one."""
    # Imported here: cyclonedx-python-lib is slow to load when the command ends in a usage error.
    from hotplate.inspection.sbom import leave_beside

    try:
        print(f"           bill of materials: {leave_beside(result.image, checksums=checksums)}")
    except ImageError as error:
        print(f"hotplate: no bill of materials was written: {error.message}", file=sys.stderr)


def _report(result: BuildResult) -> None:
    size = result.image.stat().st_size / 1e6
    print(f"{result.seconds:7.1f} s  done: {result.image} ({size:.0f} MB)")
    print(f"           log: {result.log}")
