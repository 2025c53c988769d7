"""``hotplate build``: build an image with one short command."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cli.arguments import add_repeated, add_settings, load_settings, words_of
from hotplate.errors import ImageError
from hotplate.image.build_request import (
    DEFAULT_GROUPS,
    TYPES,
    BuildOptions,
    build_request,
    this_machine,
)
from hotplate.image.plan import BuildRequest, Kernel, Layout, Starts
from hotplate.interrupts import Interrupts

if TYPE_CHECKING:
    from hotplate.image.build import BuildResult
    from hotplate.inspection.signature import PrivateKey


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
        default=[],
        metavar="GROUP[,GROUP...]",
        help="software-config groups the image can run (default: script)",
    )
    firmware = parser.add_mutually_exclusive_group()
    firmware.add_argument(
        "--firmware",
        choices=[firmware.value for firmware in Starts],
        help="firmware that starts a whole disk (default: bios; on ARM, uefi)",
    )
    firmware.add_argument(
        "--secure-boot",
        dest="firmware",
        action="store_const",
        const=Starts.SECURE_BOOT.value,
        help="the same as --firmware secure-boot: UEFI with a signed boot loader",
    )
    parser.add_argument(
        "--arch",
        default=this_machine(),
        help="architecture, as Debian calls it (default: %(default)s)",
    )
    parser.add_argument("--type", choices=TYPES, help="image format (default: qcow2)")
    add_content_arguments(parser)
    add_settings(parser, "cache")
    parser.add_argument(
        "--sign",
        type=Path,
        metavar="KEY",
        help="sign the image and the files beside it with this private key: PEM, Ed25519 or ECDSA "
        "P-256; HOTPLATE_SIGN_PASSPHRASE has the passphrase of an encrypted one",
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
    add_repeated(parser, "--element", metavar="NAME", text="add an element")
    add_repeated(
        parser,
        "--element-path",
        type=Path,
        metavar="DIR",
        text="search this directory for elements first",
    )
    add_repeated(parser, "--package", metavar="NAME", text="add a package")
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


def options_of(args: argparse.Namespace) -> BuildOptions:
    """Return the options added by :func:`add_content_arguments`."""
    return BuildOptions(
        layout=args.layout,
        size=args.size,
        elements=tuple(args.element),
        element_path=tuple(args.element_path),
        packages=tuple(args.package),
        kernel=Kernel(args.kernel),
        install_type=args.install_type,
        cloud_init=not args.no_cloud_init,
        snapshot=args.snapshot,
        offline=args.offline,
    )


def request_from(args: argparse.Namespace) -> BuildRequest:
    """Return the request of the command line.

    :raises UsageError: when its parts contradict each other.
    """
    return build_request(
        options_of(args),
        args.release,
        cache=load_settings(args).cache,
        environ=os.environ,
        # One empty word is an image without groups.
        groups=words_of(args.group) if args.group else DEFAULT_GROUPS,
        firmware=Starts(args.firmware) if args.firmware else None,
        arch=args.arch,
        image_type=args.type or "",
        output=args.output,
    )


def run(args: argparse.Namespace) -> int:
    """Build an image, or show the commands; return the exit status."""
    # Imported here: --help and completion, those of the verb test as well, do without them.
    from hotplate.image.build import Build
    from hotplate.image.build_display import build_shown
    from hotplate.image.preflight import Preflight

    request = request_from(args)
    key = _signing_key(args.sign) if args.sign else None
    preflight = Preflight(request, os.environ)
    # Only the request: the tools of this host are not needed to print the commands.
    if args.dry_run:
        preflight.check_request()
    else:
        preflight.check()
    build = Build(request, os.environ)
    for sentence in build.overridden():
        print(f"hotplate build: {sentence}", file=sys.stderr)
    if args.dry_run:
        print(build.shell())
        return 0
    # By default SIGTERM ends Python at once, without the "finally" of the build.
    with Interrupts() as interrupts, interrupts.allowed():
        result = build_shown(build)
        _report(result)
        _leave_bills(result, request.cache / "checksums")
        _sign(result.image, key)
    return 0


def _leave_bills(result: BuildResult, checksums: Path) -> None:
    """Write the bills of materials; an image that cannot be read here is good without them."""
    # Imported here: cyclonedx-python-lib is slow to load when the command ends in a usage error.
    from hotplate.inspection.sbom import leave_beside

    try:
        for file in leave_beside(result.image, checksums=checksums):
            print(f"           bill of materials: {file}")
    except ImageError as error:
        print(f"hotplate: no bill of materials was written: {error.message}", file=sys.stderr)


def _signing_key(file: Path) -> PrivateKey:
    """Return the private key, before the long work begins."""
    from hotplate.inspection import signature

    key = signature.private_key(file, os.environ.get("HOTPLATE_SIGN_PASSPHRASE", ""))
    if problem := signature.others_can_read(file):
        print(f"hotplate: {problem}", file=sys.stderr)
    return key


def _sign(image: Path, key: PrivateKey | None) -> None:
    """Sign the image; without a key, remove the signature of an earlier one of that name."""
    from hotplate.inspection import signature

    if key is None:
        signature.path_for(image).unlink(missing_ok=True)
    else:
        print(f"           signature: {signature.sign(image, key)}")


def _report(result: BuildResult) -> None:
    size = result.image.stat().st_size / 1e6
    print(f"{result.seconds:7.1f} s  done: {result.image} ({size:.0f} MB)")
    print(f"           log: {result.log}")
