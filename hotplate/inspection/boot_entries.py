"""The entries from which a boot loader starts a kernel: its version and its command line.

Sources: the UAPI group's Boot Loader Specification (``loader/entries/*.conf``, ``EFI/Linux/*.efi``)
and Unified Kernel Image specification; loader.conf(5); Fedora's ``grub2/10_linux_bls.in`` for
``$kernelopts``; the PE format of Microsoft, 3 and 4.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hotplate.errors import ImageError
from hotplate.inspection.tree import Tree

BOOT_MENUS = ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg", "/boot/extlinux/extlinux.conf")
#: Files with the kernel's command line for kernel-install(8), which puts it into an entry, or into
#: a unified kernel image.
COMMAND_LINES = ("/etc/kernel/cmdline", "/usr/lib/kernel/cmdline")
#: GRUB's variables on disk.
ENVIRONMENTS = ("/boot/grub2/grubenv", "/boot/grub/grubenv")
#: The places of the EFI system partition, and of one for /boot, in a tree.
TOPS = ("/boot", "/efi", "/boot/efi")

#: Limit of the entries; each is a file.
MAX_ENTRIES = 256
#: Limits of the bytes of a unified kernel image up to the sections that are read, and of those.
MAX_IMAGE, MAX_TEXT = 256 << 20, 64 << 10
#: Limit of the characters of a command line, and of a variable in it; Linux has 4096 at most.
MAX_OPTIONS = 4096
#: Limit of a PE file's sections (PE format, 3.3).
MAX_SECTIONS = 96

_MENU_ENTRY = re.compile(
    r"^[ \t]*(?:linux(?:16|efi)?[ \t]+\S+|options|append)[ \t]+(.*)$", re.I | re.M
)
_LINE = re.compile(r"^[ \t]*([a-z][a-z-]*)[ \t]+(.*\S)?", re.M)
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@dataclass(frozen=True)
class BootEntry:
    """An entry.

    :param path: its file; in the EFI system partition when that is not mounted.
    :param kind: ``UKI`` for a unified kernel image, ``BLS`` for a file of the specification.
    :param version: of the kernel, "" when the entry does not tell.
    :param options: the kernel's command line.
    """

    path: str
    kind: str
    title: str
    version: str
    options: str

    @property
    def name(self) -> str:
        """Return the name of its file, by which loader.conf names it."""
        return self.path.rpartition("/")[2]


def boot_entries(tree: Tree) -> list[BootEntry]:
    """Return the entries, the one that is started by default first.

    That is the one that ``loader.conf`` names, or else of the latest version, as with systemd-boot
    and GRUB.
    """
    entries: dict[str, BootEntry] = {}
    default = ""
    for where, top in _tops(tree):
        # One that is damaged has no entries.
        with contextlib.suppress(ImageError):
            settings = dict(_LINE.findall(where.text(_path(where, f"{top}/loader/loader.conf"))))
            default = default or settings.get("default", "")
            for entry in _entries(tree, where, top):
                entries.setdefault(entry.name, entry)

    def rank(entry: BootEntry) -> tuple[bool, bool, list[tuple[int, str]]]:
        chosen = any(fnmatchcase(entry.name, each) for each in (default, f"{default}.conf"))
        rescue = "rescue" in entry.name or "rescue" in entry.version
        return (bool(default) and chosen, not rescue, _version_key(entry.version or entry.name))

    return sorted(entries.values(), key=rank, reverse=True)


def _entries(tree: Tree, where: Tree, top: str) -> Iterator[BootEntry]:
    for path in where.paths(_path(where, f"{top}/loader/entries"), ".conf")[:MAX_ENTRIES]:
        yield _bls(tree, where, path)
    for path in where.paths(_path(where, f"{top}/EFI/Linux"))[:MAX_ENTRIES]:
        if path.lower().endswith(".efi") and (image := _uki(where, path)):
            yield image


def _tops(tree: Tree) -> Iterator[tuple[Tree, str]]:
    for top in TOPS:
        yield tree, top
    if tree.efi is not None:
        yield tree.efi, ""


def _path(tree: Tree, path: str) -> str:
    """Return a path as it is spelled in a tree: in FAT, upper and lower case are the same."""
    found = ""
    for part in path.strip("/").split("/"):
        names = [each for each in tree.names(found or "/") if each.lower() == part.lower()]
        found += f"/{part if part in names or not names else names[0]}"
    return found


def _version_key(version: str) -> list[tuple[int, str]]:
    """Return a key by which versions are sorted as numbers (strverscmp(3), nearly)."""
    parts = re.findall(r"\d+|[^\d.\-_+~]+", version)
    return [(int(part[:18]), "") if part.isdigit() else (-1, part) for part in parts]


def _bls(tree: Tree, where: Tree, path: str) -> BootEntry:
    lines = _LINE.findall(where.text(path))
    fields = dict(lines)
    # Several lines of options are one.
    options = " ".join(value for name, value in lines if name == "options")[:MAX_OPTIONS]
    if "$" in options:
        known = _environment(tree)
        options = _VARIABLE.sub(lambda it: known.get(it[1], "")[:MAX_OPTIONS], options)
    options = " ".join(options[:MAX_OPTIONS].split())
    version = fields.get("version", "") or fields.get("linux", "").rpartition("vmlinuz-")[2]
    return BootEntry(path, "BLS", fields.get("title", ""), version, options)


def _environment(tree: Tree) -> dict[str, str]:
    text = next((text for text in map(tree.text, ENVIRONMENTS) if text), "")
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.M))


def _uki(tree: Tree, path: str) -> BootEntry | None:
    """Return a unified kernel image, None for another program."""
    sections = pe_sections(tree.read(path, 4096))
    if ".linux" not in sections:
        return None
    texts = {}
    for name in (".osrel", ".uname", ".cmdline"):
        at, size = sections.get(name, (0, 0))
        size = min(size, MAX_TEXT)
        data = tree.read(path, at + size)[at:] if size and at < MAX_IMAGE else b""
        texts[name] = data.rstrip(b"\0").decode("utf-8", "replace").strip()
    title = re.search(r'^PRETTY_NAME="?(.*?)"?$', texts[".osrel"], re.M)
    return BootEntry(
        path, "UKI", title[1] if title else "", texts[".uname"], " ".join(texts[".cmdline"].split())
    )


def pe_sections(head: bytes) -> dict[str, tuple[int, int]]:
    """Return the sections of a PE file: offset and bytes of the first one of each name.

    :param head: its first bytes.
    """
    found: dict[str, tuple[int, int]] = {}
    with contextlib.suppress(struct.error):
        (at,) = struct.unpack_from("<I", head, 60)
        if head[:2] != b"MZ" or head[at : at + 4] != b"PE\0\0":
            return {}
        count, optional = struct.unpack_from("<2xH12xH", head, at + 4)
        start = at + 24 + optional
        for place in range(start, start + 40 * min(count, MAX_SECTIONS), 40):
            name, virtual, _, size, offset = struct.unpack_from("<8s4I", head, place)
            # What is in the file may be longer than the section, to be aligned.
            text = name.rstrip(b"\0").decode("ascii", "replace")
            found.setdefault(text, (offset, min(virtual or size, size)))
    return found


def kernel_words(tree: Tree) -> list[str]:
    """Return the words of the command line with which the kernel is started by default.

    It is taken from the first entry of GRUB's or extlinux's menu, else from an entry of the Boot
    Loader Specification or a unified kernel image, else from the files for kernel-install(8).
    """
    for path in BOOT_MENUS:
        if entry := _MENU_ENTRY.search(tree.text(path)):
            return entry[1].split()
    for each in boot_entries(tree)[:1]:
        return each.options.split()
    texts = map(tree.text, COMMAND_LINES)
    return next((text.split() for text in texts if text), [])
