"""``hotplate test --release``: its options, and the images that it builds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cases.builtin import check_cases
from hotplate.cli import build as build_verb
from hotplate.cli.arguments import load_settings
from hotplate.errors import UsageError
from hotplate.image.plan import MACHINES, Kernel, Layout, Starts
from hotplate.settings import Arch, FirmwareChoice
from hotplate.text import clean

if TYPE_CHECKING:
    from hotplate.image.plan import BuildRequest
    from hotplate.image.release_images import ReleaseImages

NOT_BUILT: Mapping[str, tuple[str, object]] = {
    "layout": ("--partition", Layout.DISK),
    "size": ("--size", None),
    "element": ("--element", []),
    "element_path": ("--element-path", []),
    "package": ("--package", []),
    "kernel": ("--kernel", Kernel.CLOUD.value),
    "install_type": ("--install-type", "slim"),
    "no_cloud_init": ("--no-cloud-init", False),
    "snapshot": ("--snapshot", ""),
    "offline": ("--offline", False),
}
"""Options of built images, by their names in the arguments, with their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the images to build, and their content."""
    group = parser.add_argument_group("images that are built for the test")
    group.add_argument(
        "--release",
        dest="releases",
        type=_words,
        default=[],
        metavar="RELEASE[,RELEASE...]",
        help="build an image of each of these releases, with the groups of --group (script), as "
        "the verb build does, and test it like any other; it is kept in the cache, and built again "
        "when anything is different that goes into it",
    )
    build_verb.add_content_arguments(group)


def _words(text: str) -> list[str]:
    """Return the releases of a list with commas.

    >>> _words("bookworm,trixie,bookworm")
    ['bookworm', 'trixie']
    """
    releases = [*dict.fromkeys(each for each in text.split(",") if each)]
    if not releases:
        raise argparse.ArgumentTypeError("expected the name of a release")
    return releases


def check(args: argparse.Namespace, releases: Sequence[str]) -> None:
    """Refuse options of built images when none is built.

    :param releases: the releases to build.
    :raises UsageError: names one.
    """
    if releases:
        return
    for name, (option, default) in NOT_BUILT.items():
        if getattr(args, name) != default:
            raise UsageError(f"{option} is for images that are built", hint="--release RELEASE")


def groups_of(args: argparse.Namespace) -> list[str]:
    """Return the groups of ``--group``."""
    return [name for words in args.groups for name in words.split(",") if name]


def requests(
    args: argparse.Namespace, releases: Sequence[str], firmwares: Sequence[str]
) -> list[BuildRequest]:
    """Return the build requests, one for each release.

    :param firmwares: the firmwares of the tests; none for that of the settings.
    :raises UsageError: when the options conflict.
    """
    if not releases:
        return []
    for each in releases:
        if "/" in each:
            raise UsageError(
                f'"{each}" is the name of no release', hint="--release bookworm,trixie"
            )
    settings = load_settings(args)
    starts = _starts({*firmwares} or {settings.firmware.value})
    machine = None if settings.arch is Arch.AUTO else MACHINES[settings.arch.value]
    words = {
        **vars(args),
        "group": [",".join(groups_of(args)) or "script"],
        "firmware": None if args.layout is Layout.PARTITION else starts,
        "arch": machine or build_verb.this_machine(),
        "type": None,
        "output": Path("image"),
        "cache": settings.cache,
    }
    return [
        build_verb.request_from(argparse.Namespace(**{**words, "release": each}))
        for each in releases
    ]


def _starts(firmwares: set[str]) -> str | None:
    """Return the firmware that an image is built for, None for the default.

    :raises UsageError: when no image can be booted by all of them.
    """
    uefi, bios = FirmwareChoice.UEFI.value, FirmwareChoice.BIOS.value
    if {uefi, bios} <= firmwares:
        raise UsageError(
            "an image of --release is built for one firmware, and --firmware names both",
            hint="--firmware bios, or --firmware uefi",
        )
    for word, starts in ((uefi, Starts.UEFI), (bios, Starts.BIOS)):
        if word in firmwares:
            return starts.value
    return None


def check_groups(args: argparse.Namespace) -> None:
    """Refuse groups without a built-in case, before an image is built to test them.

    :raises UsageError: names one.
    """
    if args.groups:
        check_cases(groups_of(args), "that is built")


def images(args: argparse.Namespace) -> ReleaseImages:
    """Return the store of images, which builds missing ones."""
    # Imported here: most commands build nothing.
    from hotplate.image.build import Build
    from hotplate.image.release_images import ReleaseImages

    def build(request: BuildRequest) -> None:
        say(f"building an image of {request.release} ({', '.join(request.groups)})")
        build_verb.build_shown(Build(request, os.environ), quiet=args.quiet)

    def say(text: str) -> None:
        if not args.quiet:
            print(clean(text), flush=True)

    return ReleaseImages(os.environ, build=build, say=say)
