"""The request for an image from the options of a command line, for ``build`` and ``test``."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate.errors import UsageError
from hotplate.image.plan import MACHINES, BuildRequest, Kernel, Layout, Starts

TYPES = ("qcow2", "raw")

#: Suffixes of images that are not built; with them the name would be that of another file.
OTHER_SUFFIXES = (".img", ".vdi", ".vhd", ".vhdx", ".vmdk")


@dataclass(frozen=True)
class BuildOptions:
    """The content of an image, besides its release and its groups; see :class:`BuildRequest`."""

    layout: Layout = Layout.DISK
    size: int | None = None
    elements: tuple[str, ...] = ()
    element_path: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    kernel: Kernel = Kernel.CLOUD
    install_type: str = "slim"
    cloud_init: bool = True
    snapshot: str = ""
    offline: bool = False


#: The groups of an image for which none are named.
DEFAULT_GROUPS = ("script",)


def build_request(
    options: BuildOptions,
    release: str,
    *,
    cache: Path,
    environ: Mapping[str, str],
    groups: Sequence[str] = DEFAULT_GROUPS,
    firmware: Starts | None = None,
    arch: str = "",
    image_type: str = "",
    output: Path | None = None,
) -> BuildRequest:
    """Return the request for an image of a release.

    :param groups: its groups; an image without any has no hooks and no agent.
    :param firmware: None for the default of the architecture.
    :param arch: by Debian's name; "" for that of this host.
    :param image_type: one of :data:`TYPES`; "" for the suffix of the output, else qcow2.
    :param output: the image file; None for RELEASE-LAYOUT.
    :param environ: the environment, for ``SOURCE_DATE_EPOCH``.
    :raises UsageError: when parts of it contradict each other.
    """
    arch = arch or this_machine()
    if arch in MACHINES:
        raise UsageError(f'there is no architecture "{arch}"; Debian calls it "{MACHINES[arch]}"')
    output = output or Path(f"{release}-{options.layout.value}")
    suffix = output.suffix.lstrip(".")
    if suffix in TYPES and image_type not in ("", suffix):
        raise UsageError(f'"{output}" has the suffix of another type than --type {image_type}')
    if output.suffix in OTHER_SUFFIXES:
        raise UsageError(
            f'"{output}" has the suffix of no type that is built; expected .qcow2, .raw or none',
            hint="for another: qemu-img convert -O TYPE IMAGE.qcow2 FILE",
        )
    if not output.name or output.is_dir():
        raise UsageError(f'"{output}" is a directory; name the image file to write')
    if firmware and options.layout is Layout.PARTITION:
        raise UsageError(
            "--firmware and --secure-boot are for a whole disk; a partition is given its kernel"
        )
    if arch != "amd64" and firmware is Starts.BIOS:
        raise UsageError(f'"{arch}" machines have no BIOS; use --firmware uefi')
    if arch != "amd64" and firmware is Starts.SECURE_BOOT:
        raise UsageError(f'images for Secure Boot are built for "amd64" only, not for "{arch}"')
    if options.size is not None and options.size < 1:
        raise UsageError(f"--size {options.size} is too small; expected GiB, at least 1")
    return BuildRequest(
        output=output,
        cache=cache,
        release=release,
        groups=tuple(groups),
        firmware=firmware or (Starts.BIOS if arch == "amd64" else Starts.UEFI),
        arch=arch,
        image_type=image_type or (suffix if suffix in TYPES else "qcow2"),
        epoch=source_date_epoch(environ),
        **vars(options),
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


def this_machine() -> str:
    """Return the architecture of this host, by Debian's name."""
    return MACHINES.get(platform.machine(), "amd64")
