"""``hotplate test --release``: the images that it builds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotplate.cases.request import Request
from hotplate.errors import UsageError
from hotplate.image.build import Build
from hotplate.image.build_display import build_shown
from hotplate.image.build_request import DEFAULT_GROUPS, BuildOptions, build_request
from hotplate.image.plan import MACHINES, BuildRequest, Layout, Starts
from hotplate.image.release_images import ReleaseImages
from hotplate.settings import Arch, FirmwareChoice
from hotplate.text import clean

#: The fields of :class:`BuildOptions`, and their options.
OPTIONS: Mapping[str, str] = {
    "layout": "--partition",
    "size": "--size",
    "elements": "--element",
    "element_path": "--element-path",
    "packages": "--package",
    "kernel": "--kernel",
    "install_type": "--install-type",
    "cloud_init": "--no-cloud-init",
    "snapshot": "--snapshot",
    "offline": "--offline",
}


def check(options: BuildOptions, releases: Sequence[str]) -> None:
    """Refuse options of built images when none is built.

    :param releases: the releases to build.
    :raises UsageError: names one.
    """
    if releases:
        return
    default = BuildOptions()
    for name, option in OPTIONS.items():
        if getattr(options, name) != getattr(default, name):
            raise UsageError(f"{option} is for images that are built", hint="--release RELEASE")


def requests(
    request: Request, releases: Sequence[str], firmwares: Sequence[str]
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
    settings = request.settings
    starts = _starts({*firmwares} or {settings.firmware.value})
    return [
        build_request(
            request.build,
            each,
            cache=settings.cache,
            environ=os.environ,
            groups=request.groups or DEFAULT_GROUPS,
            # A partition image has no boot loader, so that no firmware is chosen for it.
            firmware=None if request.build.layout is Layout.PARTITION else starts,
            arch="" if settings.arch is Arch.AUTO else MACHINES[settings.arch.value],
            output=Path("image"),
        )
        for each in releases
    ]


def _starts(firmwares: set[str]) -> Starts | None:
    """Return the firmware that an image is built for, None for the default.

    :raises UsageError: when no image can be booted by all of them.
    """
    wanted = firmwares - {FirmwareChoice.AUTO.value}
    if len(wanted) > 1 and Starts.BIOS.value in wanted:
        raise UsageError(
            "an image of --release is built for one firmware, BIOS or UEFI, and --firmware names "
            "both",
            hint="--firmware bios, or --firmware uefi",
        )
    # Plain UEFI starts an image for Secure Boot as well.
    return next((each for each in reversed(Starts) if each.value in wanted), None)


def images(*, quiet: bool) -> ReleaseImages:
    """Return the store of images, which builds missing ones.

    :param quiet: do not show the progress of a build.
    """

    def build(request: BuildRequest) -> None:
        say(f"building an image of {request.release} ({', '.join(request.groups)})")
        build_shown(Build(request, os.environ), quiet=quiet)

    def say(text: str) -> None:
        if not quiet:
            print(clean(text), flush=True)

    return ReleaseImages(os.environ, build=build, say=say)
