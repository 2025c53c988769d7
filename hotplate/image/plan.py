"""Conversion of a request to a ``disk-image-create`` line.

A plan only adds to a line that a user could have typed; ``str(plan)`` is that line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hotplate.errors import HostError, UsageError
from hotplate.image.mirrors import Mirrors


class Layout(Enum):
    """DISK has a partition table and a boot loader; PARTITION has kernel and initrd beside it."""

    DISK = "disk"
    PARTITION = "partition"


class Starts(Enum):
    """The firmware of a whole disk: BIOS with GRUB in an MBR, UEFI with systemd-boot in a GPT.

    With Secure Boot it is shim and the distribution's signed GRUB in a GPT, for any UEFI.
    """

    BIOS = "bios"
    UEFI = "uefi"
    SECURE_BOOT = "secure-boot"


class Kernel(Enum):
    """CLOUD is Debian's kernel for virtual machines; GENERIC has the drivers of real hardware."""

    CLOUD = "cloud"
    GENERIC = "generic"


OPERATING_SYSTEM = "debian-minimal"

#: The kernel's name of an architecture -> Debian's.
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}

#: A group without an element -> its replacement.
DROPPED = {
    "kubelet": 'heat-agents had it; use "podman kube play" in the group script, or docker-cmd',
    "atomic": "heat-agents had it; use docker-cmd with podman",
}

#: diskimage-builder would ask for ``sid-updates``, which does not exist; it handles
#: ``unstable``.
ALIASES = {"sid": "unstable"}

#: Values of ``--release``; a later one is accepted when debootstrap has a script for it.
RELEASES = ("bullseye", "bookworm", "trixie", "forky", "testing", "unstable", "sid")

#: Releases whose Python is older than the 3.9 that hooks and agent need.
TOO_OLD = ("buster", "stretch", "jessie", "wheezy", "squeeze", "lenny", "etch", "sarge", "woody")

#: Packages that every image gets anyway, so that they are part of the cached base system.
#:
#: ``initramfs-tools`` is then configured before the kernel, which makes one initramfs and not two.
BASE_PACKAGES = (
    *("adduser", "busybox", "ca-certificates", "gnupg2", "initramfs-tools", "locales"),
    *("lsb-release", "netbase", "python3", "sudo", "systemd-sysv", "tzdata", "zstd"),
)

#: The option of qemu-img for images of the type qcow2.
COMPRESSION = "compression_type=zstd"

#: Variables of the caller that are passed to a build, besides ``DIB_*`` and ``PIP_*``.
#:
#: All of them reach the scripts in the image too, so the list is short.
PASSED = (
    *("HOME", "LOGNAME", "USER", "XDG_CACHE_HOME"),
    *("http_proxy", "https_proxy", "ftp_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_DIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)

#: The namespace of the UUIDs of file systems that must be the same in each build.
UUIDS = uuid.UUID("2a4f6b0e-9d0c-4c9e-8f5e-6d1a9b7c3e21")

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class BuildRequest:
    """A request for an image.

    :param output: the image file; its suffix may be left out.
    :param release: a Debian release by its code name, or ``testing`` or ``unstable``.
    :param groups: software-config groups, each an element ``heat-config-<group>``.
    :param elements: further elements; one that provides an operating system replaces Debian.
    :param packages: further packages.
    :param element_path: directories searched for elements before hotplate's own.
    :param size: GiB of the virtual disk; None fits it to the content.
    :param cache: directory of everything that later builds can reuse.
    :param snapshot: a time of the archive, such as ``20251101T000000Z``; "" for the present.
    :param epoch: upper limit of the times of all files, in seconds since 1970; None for no limit.
    """

    output: Path
    cache: Path
    release: str = "bookworm"
    groups: tuple[str, ...] = ("script",)
    layout: Layout = Layout.DISK
    kernel: Kernel = Kernel.CLOUD
    firmware: Starts = Starts.BIOS
    image_type: str = "qcow2"
    elements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    element_path: tuple[Path, ...] = ()
    install_type: str = "slim"
    cloud_init: bool = True
    offline: bool = False
    size: int | None = None
    arch: str = "amd64"
    snapshot: str = ""
    epoch: int | None = None

    @property
    def name(self) -> Path:
        """Return the output without the suffix of its type."""
        suffix = f".{self.image_type}"
        return self.output.with_suffix("") if self.output.suffix == suffix else self.output

    @property
    def image(self) -> Path:
        """Return the image file."""
        return self.beside(f".{self.image_type}")

    def beside(self, suffix: str) -> Path:
        """Return a file beside the image, with its name and another suffix."""
        return self.name.with_name(self.name.name + suffix)


@dataclass(frozen=True)
class Plan:
    """A ``disk-image-create`` line.

    :param elements: the elements on it; diskimage-builder adds their dependencies.
    :param options: the words before the elements, without ``-o``.
    :param environment: variables needed besides the caller's own environment.
    """

    elements: tuple[str, ...]
    options: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def argv(self, name: str, *, program: str = "disk-image-create") -> list[str]:
        """Return the command, for an image called ``name`` plus the suffix of its type."""
        return [program, *self.options, "-o", name, *self.elements]

    def shell(self, name: str) -> str:
        """Return the line as a user would type it, preceded by its environment."""
        settings = [f"{key}={shlex.quote(value)}" for key, value in self.environment.items()]
        return " \\\n    ".join([*settings, shlex.join(self.argv(name))])


def find_element(name: str, path: tuple[Path, ...]) -> Path | None:
    """Return the directory of an element, or None when none of the directories has it."""
    for directory in path:
        if (directory / name).is_dir():
            return directory / name
    return None


def groups_of(element: Path) -> set[str]:
    """Return the groups whose hooks an element brings, by its file ``heat-config-hooks``."""
    try:
        lines = (element / "heat-config-hooks").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    given = [line.partition("#")[0].split() for line in lines]
    return {words[0] for words in given if words and words[0] not in ("lib", "bin")}


def groups_with_an_element(path: tuple[Path, ...]) -> list[str]:
    """Return the software-config groups that have a hook, by the name of its element."""
    elements = [each for directory in path for each in directory.glob("heat-config-*")]
    groups = set().union(*map(groups_of, elements))
    return sorted(group for group in groups if find_element(f"heat-config-{group}", path))


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the build, made from selected variables of the caller.

    The build runs in another directory, so relative paths in them become absolute.
    """
    kept = {
        key: _absolute(value)
        for key, value in environ.items()
        if key in PASSED or key.startswith(("DIB_", "PIP_"))
    }
    kept.setdefault("USER", "root")
    kept["PATH"] = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
    return kept


def _absolute(value: str) -> str:
    """Return a value, made absolute when it is the relative path of a file or a directory.

    One without a slash may be the name of a package, unless it ends as a package's file does.
    """
    is_path = "/" in value or value.endswith((".deb", ".rpm", ".sh"))
    # Path.exists() raises for a text that is too long for a path.
    there = is_path and os.path.exists(value)  # noqa: PTH110
    return str(Path(value).absolute()) if there else value


def check_release(release: str, *, scripts: Path = Path("/usr/share/debootstrap/scripts")) -> None:
    """Check that a Debian release of that name exists, and is recent enough.

    :param scripts: directory in which debootstrap(8) has a script for each known release.
    :raises UsageError: when there is none, or it is too old.
    """
    if release in TOO_OLD:
        raise UsageError(
            f'the release "{release}" is too old: hooks and agent need Python 3.9',
            hint=f"releases: {', '.join(RELEASES)}",
        )
    if release not in RELEASES and not ("/" not in release and (scripts / release).is_file()):
        raise UsageError(
            f'there is no Debian release "{release}"', hint=f"releases: {', '.join(RELEASES)}"
        )


def is_debian(request: BuildRequest, path: tuple[Path, ...]) -> bool:
    """Return whether no element of the request brings an operating system of its own.

    Others bring it by a dependency, such as ``rocky-container``.
    """
    needed = with_dependencies(request.elements, path)
    others = (name for name, by in needed.items() if not by or name != OPERATING_SYSTEM)
    elements = (find_element(name, path) for name in others)
    return not any(
        each and "operating-system" in _names(each / "element-provides") for each in elements
    )


def problems(
    request: BuildRequest, *, elements_dir: Path, dib_elements: Path
) -> Iterator[UsageError]:
    """Yield the errors in a request: paths, groups, elements, the release.

    :param elements_dir: hotplate's elements.
    :param dib_elements: diskimage-builder's own.
    """
    path = (*request.element_path, elements_dir)
    everywhere = (*path, dib_elements)
    for directory in request.element_path:
        if not directory.is_dir():
            yield UsageError(f'there is no directory "{directory}" (--element-path)')
    for directory in (*everywhere, request.cache):
        if re.search(r"[\s:]", str(directory)):
            yield UsageError(
                f'"{directory}" has a space or a colon in it, which disk-image-create cannot take'
            )
    for group in request.groups:
        if find_element(f"heat-config-{group}", everywhere) is None:
            yield UsageError(
                f'there is no element "heat-config-{group}" for the group "{group}"',
                hint=DROPPED.get(group)
                or f"groups with an element: {', '.join(groups_with_an_element(everywhere))}",
            )
    for name in request.elements:
        if find_element(name, everywhere) is None:
            yield UsageError(
                f'there is no element "{name}" in "{":".join(map(str, path))}" or in '
                "diskimage-builder",
                hint="name its directory with --element-path",
            )
    yield from _missing_dependencies(request, everywhere)
    yield from _provided_twice(request, everywhere)
    if is_debian(request, everywhere):
        try:
            check_release(request.release)
        except UsageError as error:
            yield error


def _missing_dependencies(request: BuildRequest, path: tuple[Path, ...]) -> Iterator[UsageError]:
    """Yield an error for each missing dependency of an element.

    By ``element-deps``, as diskimage-builder reads it
    (``diskimage_builder/element_dependencies``).
    """
    wanted = [*request.elements, *(f"heat-config-{group}" for group in request.groups)]
    needed = with_dependencies(wanted, path)
    for dependency, name in needed.items():
        if not name or find_element(dependency, path) or dependency in provided(path):
            continue
        yield UsageError(
            f'the element "{name}" needs the element "{dependency}", which is not there',
            hint="diskimage-builder takes each line of element-deps for a name, comments too"
            if "#" in dependency or len(dependency.split()) > 1
            else "name its directory with --element-path",
        )


def _provided_twice(request: BuildRequest, path: tuple[Path, ...]) -> Iterator[UsageError]:
    """Yield an error for each thing that two elements provide, which diskimage-builder refuses."""
    chosen = (_block_device_element(request),) if request.layout is Layout.DISK else ()
    providers: dict[str, str] = {}
    for name in with_dependencies([*chosen, *request.elements], path):
        element = find_element(name, path)
        if name in providers or element is None:
            continue
        for thing in _names(element / "element-provides"):
            if thing in providers:
                yield UsageError(
                    f'the elements "{providers[thing]}" and "{name}" both provide "{thing}"',
                    hint="every whole disk has the first; leave out the second"
                    if providers[thing] in chosen
                    else "leave one of them out",
                )
            providers.setdefault(thing, name)


def _block_device_element(request: BuildRequest) -> str:
    bios = request.firmware is Starts.BIOS
    return "block-device-offset-mbr" if bios else "block-device-offset-efi"


def with_dependencies(names: Iterable[str], path: tuple[Path, ...]) -> dict[str, str]:
    """Return elements and all that they depend on, each with the element that needs it.

    That is "" for the given ones.
    """
    needed = dict.fromkeys(names, "")
    waiting = [*needed]
    for name in waiting:
        element = find_element(name, path)
        # The list grows while it is read.
        for dependency in dependencies(element) if element else ():
            if dependency not in needed:
                needed[dependency] = name
                waiting.append(dependency)
    return needed


def provided(path: tuple[Path, ...]) -> set[str]:
    """Return the names of elements that other elements provide."""
    files = [file for directory in path for file in directory.glob("*/element-provides")]
    return {name for file in files for name in _names(file)}


def dependencies(element: Path) -> list[str]:
    """Return the elements that an element names in its file ``element-deps``."""
    return _names(element / "element-deps")


def _names(file: Path) -> list[str]:
    """Return the names in a file, none when there is no such file.

    To diskimage-builder every line but an empty one is a name, also a comment.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def make(
    request: BuildRequest, *, elements_dir: Path, dib_elements: Path, mirrors: Mirrors
) -> Plan:
    """Make the plan of a request.

    :param elements_dir: hotplate's elements.
    :param dib_elements: diskimage-builder's own.
    :raises UsageError: for a missing element or group, or a path that dib cannot handle.
    """
    for problem in problems(request, elements_dir=elements_dir, dib_elements=dib_elements):
        raise problem
    path = (*request.element_path, elements_dir)
    wanted = [*request.elements, *(f"heat-config-{group}" for group in request.groups)]
    debian = is_debian(request, (*path, dib_elements))
    release = ALIASES.get(request.release, request.release)

    elements: list[str] = [OPERATING_SYSTEM] if debian else []
    options = ["-a", request.arch, "-t", request.image_type, "-n"]
    environment = {
        "ELEMENTS_PATH": ":".join(str(directory.absolute()) for directory in path),
        "DIB_RELEASE": release,
        "DIB_IMAGE_CACHE": str(image_cache(request, mirrors)),
        # By default in the home directory, which a service's user may not have.
        "DIB_LOCKFILES": str(image_cache(request, mirrors) / "lockfiles"),
        "OVERWRITE_OLD_IMAGE": "1",
    }
    packages = list(request.packages)
    if not request.cloud_init:
        elements.append("heat-config-bootstrap")
    elif debian:
        # The second brings up the network, also in an image without the agent.
        elements += ["cloud-init", "heat-config-cloud-init"]
    grub = request.layout is Layout.DISK and request.firmware is Starts.BIOS
    if grub:
        elements += ["vm", _block_device_element(request)]
        environment["DIB_GRUB_TIMEOUT"] = "0"
    elif request.layout is Layout.DISK:
        elements.append(_block_device_element(request))
        if request.firmware is Starts.SECURE_BOOT:
            environment["DIB_OFFSET_EFI_SECURE_BOOT"] = "1"
    else:
        elements.append("baremetal")
    if debian:
        elements += ["apt-archive-cache", "heat-config-lean"]
        if request.kernel is Kernel.GENERIC:
            environment["DIB_HEAT_LEAN_KERNEL"] = "linux-image"
            environment["DIB_HEAT_LEAN_INITRD"] = "most"
        if grub:
            # Installed here, it comes from the cache and counts when the image is sized.
            packages.append("grub-pc")
        environment |= _debian(release, mirrors)
    if request.epoch is not None:
        elements.append("reproducible")
        environment["SOURCE_DATE_EPOCH"] = str(request.epoch)
        if request.layout is Layout.DISK:
            environment["DIB_BLOCK_DEVICE_CONFIG"] = _block_device(
                elements_dir / _block_device_element(request) / "block-device-default.yaml",
                request.epoch,
            )
    if request.image_type == "qcow2":
        options += ["--qemu-img-options", COMPRESSION]
    if request.size is not None:
        options += ["--image-size", str(request.size)]
    if request.offline:
        options.append("--offline")
    # The agent's elements take "source" for "slim"; others, such as simple-init, have no "slim" and
    # would install nothing.
    options += ["--install-type", request.install_type.replace("slim", "source")]
    if packages:
        options += ["-p", ",".join(packages)]
    return Plan(tuple(dict.fromkeys([*elements, *wanted])), tuple(options), environment)


def _block_device(default: Path, epoch: int) -> str:
    """Return the block device configuration of an element with a UUID for each ext4.

    The boot loader refers to the file system by it.

    :param default: the element's ``block-device-default.yaml``.
    :param epoch: the seed of the UUID.
    """
    import yaml

    nodes = yaml.safe_load(default.read_text(encoding="utf-8"))
    for node in nodes:
        for partition in node.get("offset_partitioning", {}).get("partitions", ()):
            if partition["mkfs"]["type"] == "ext4":
                name = f"{partition['name']} {epoch}"
                partition["mkfs"]["uuid"] = str(uuid.uuid5(UUIDS, name))
    return json.dumps(nodes)


def _debian(release: str, mirrors: Mirrors) -> dict[str, str]:
    include = f"--include={','.join(BASE_PACKAGES)}"
    environment = {
        "DIB_DEBOOTSTRAP_CACHE": "1",
        "DIB_DEBIAN_USE_DEBOOTSTRAP_CACHE": "1",
        "DIB_DEBOOTSTRAP_EXTRA_ARGS": include,
        "DIB_MMDEBSTRAP_EXTRA_ARGS": include,
        # No program in such an image reads the files that it would write.
        "DIB_APT_MINIMAL_CREATE_INTERFACES": "0",
    }
    if mirrors.main:
        environment["DIB_DISTRIBUTION_MIRROR"] = mirrors.main
        environment["DIB_APT_SOURCES_CONF"] = mirrors.sources_conf(release)
        # The cached base system then has the updates too, and is not upgraded in every build.
        updates = [line.partition(":")[2] for line in mirrors.sources_conf(release).splitlines()]
        if lines := "".join(f"{line}\\n" for line in updates[1:]):
            environment["DIB_MMDEBSTRAP_EXTRA_ARGS"] += (
                f""" --setup-hook='printf "{lines}" >> "$1/etc/apt/sources.list.d/updates.list"'"""
            )
        for option in mirrors.options:
            environment["DIB_MMDEBSTRAP_EXTRA_ARGS"] += f" --aptopt='{option}'"
    return environment


def image_cache(request: BuildRequest, mirrors: Mirrors) -> Path:
    """Return ``DIB_IMAGE_CACHE`` for a request.

    diskimage-builder keys its cached base systems by release and architecture only, so the
    directory's name contains the mirrors and the packages.
    """
    places = [mirrors.main, mirrors.updates, mirrors.security, *mirrors.options]
    key = "\n".join([*places, *BASE_PACKAGES])
    return request.cache.absolute() / "dib" / hashlib.sha256(key.encode()).hexdigest()[:12]


def base_tarball(request: BuildRequest, mirrors: Mirrors) -> Path:
    """Return the path of diskimage-builder's cached base system of a release."""
    release = ALIASES.get(request.release, request.release)
    name = f"debootstrap-debian-{release}-{request.arch}.tar.gz"
    return image_cache(request, mirrors) / name


def dib_elements_dir() -> Path:
    """Return the directory of diskimage-builder's own elements."""
    try:
        from diskimage_builder import paths
    except ImportError as error:
        raise HostError(
            "diskimage-builder is not installed for this Python",
            hint=f"{sys.executable} -m pip install diskimage-builder",
        ) from error
    return Path(paths.get_path("elements"))
