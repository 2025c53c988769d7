"""``hotplate cache``: list cached files and their sizes, or remove them."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate import locks
from hotplate.cli.arguments import load_settings
from hotplate.errors import HostError, Outcome, UsageError
from hotplate.image.image_store import size_of
from hotplate.inspection.raw_disk import IMAGE_NAME
from hotplate.machine import admission
from hotplate.text import quoted

#: Days of disuse after which ``clean`` removes a file.
DAYS = 7


@dataclass(frozen=True)
class Kind:
    """One folder of the cache, or a single file.

    :param folder: its name in the cache.
    :param title: for people.
    :param always: True when ``clean`` removes it at any age, because it is soon made again.
    """

    folder: str
    title: str
    always: bool = False


KINDS = (
    Kind("warm", "saved states of booted images", always=True),
    Kind("roots", "disks that were unpacked for containers or inspection", always=True),
    Kind("images", "images that came from elsewhere"),
    Kind("releases", "images that were built for hotplate test --release"),
    Kind("heat", "environments of releases of Heat that are not installed"),
    Kind("dib", "base systems and packages for builds"),
    Kind("checksums", "checksums of images", always=True),
    Kind("memory", "what running machines have reserved of the memory"),
    Kind("history.json", "how long tests, builds and uploads took"),
    Kind("kvm.json", "whether KVM works on this host"),
)


@dataclass(frozen=True)
class Entry:
    """An entry of the cache that can be removed separately.

    :param what: its description, for people.
    :param size: bytes on the disk.
    :param used: the time of its last use, as far as known, in seconds since the epoch.
    """

    kind: Kind
    path: Path
    what: str
    size: int
    used: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate cache``."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="list what is cached, with sizes (default)")
    listing.add_argument("--json", action="store_true", help="print it as JSON, sizes in bytes")
    clean = actions.add_parser(
        "clean",
        help=f"remove saved states, leftovers, and what has not been used for {DAYS} days",
        description="Remove saved states, leftovers of runs that were killed, and what has not "
        f"been used for {DAYS} days.  What is in use stays, and is named.",
    )
    clean.add_argument("--all", action="store_true", help="remove everything, whatever its age")


def entries(root: Path) -> list[Entry]:
    """Return the entries of the cache, by kind, the most recently used first.

    :raises UsageError: when the cache is a file.
    :raises HostError: when it cannot be read.
    """
    try:
        if root.is_file():
            raise UsageError(
                f'the cache "{root}" is not a directory', hint="name one with HOTPLATE_CACHE"
            )
        return [
            entry
            for kind in KINDS
            for entry in sorted(_of(kind, root / kind.folder), key=lambda each: -each.used)
        ]
    except OSError as error:
        raise HostError(
            f'the cache "{root}" cannot be read: {error.strerror}',
            hint=f"ls -ld {quoted(root)}",
        ) from error


def _of(kind: Kind, folder: Path) -> Iterator[Entry]:
    # A lock file stays: another process may be waiting for it.
    files = folder.iterdir() if folder.is_dir() else [folder] * folder.exists()
    for path in files:
        if path.suffix in (".lock", ".use") or path.name == admission.QUEUE:
            continue
        try:
            used = path.stat().st_mtime
        # Another process has removed it since the listing.
        except FileNotFoundError:
            continue
        yield Entry(kind, path, _what(kind, path), size_of(path), used)


def _what(kind: Kind, path: Path) -> str:
    if kind.folder == "warm":
        try:
            about = json.loads((path / "about.json").read_text())
            kind = about.get("accelerator") or about["machine"]
            return f"{about['name']} ({about['memory']} MiB, {kind})"
        # about.json is written last.
        except (OSError, ValueError, KeyError):
            return "a state that was not finished"
    if kind.folder == "roots":
        with contextlib.suppress(OSError):
            return (path / IMAGE_NAME).read_text()
    return path.name


def human(size: int) -> str:
    """Return a number of bytes for people."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def ago(seconds: float) -> str:
    """Return the time since something, for people."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"


def _total(root: Path, listed: Sequence[Entry]) -> int:
    """Return the bytes of the whole cache; entries are not walked again."""
    return sum(each.size for each in listed) + size_of(root, without={each.path for each in listed})


def as_text(root: Path, listed: Sequence[Entry], *, now: float) -> str:
    """Return the list for people; the last line is the total."""
    lines = []
    for kind in KINDS:
        mine = [entry for entry in listed if entry.kind is kind]
        if not mine:
            continue
        lines.append(f"{kind.title}: {human(sum(entry.size for entry in mine))}")
        lines += [
            f"  {human(entry.size):>8}  {ago(now - entry.used):<14}  {entry.what}" for entry in mine
        ]
    lines.append(f'{human(_total(root, listed))} in all in "{root}"')
    return "\n".join(lines) + "\n"


def as_json(root: Path, listed: Sequence[Entry]) -> str:
    """Return the list as JSON."""
    document = {
        "directory": str(root),
        "bytes": _total(root, listed),
        "entries": [
            {
                "kind": entry.kind.folder,
                "what": entry.what,
                "path": str(entry.path),
                "bytes": entry.size,
                "used": int(entry.used),
            }
            for entry in listed
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def clean(root: Path, *, everything: bool, now: float) -> list[str]:
    """Remove entries that are not needed.

    :param everything: remove entries of any age.
    :return: sentences about entries that could not be removed.
    """
    from hotplate.testbed import warm_state as warm

    # Saved states first: forget() knows which of them are in use.
    stayed = [
        f'"{state.directory.name}" is in use by a run; it stays'
        for state in warm.forget(root, keep=0)
    ]
    for entry in entries(root):
        # forget() has removed the finished states; this may be the rest of a run that was killed.
        if entry.kind.folder == "warm":
            warm.remove_leftover(entry.path)
            continue
        if entry.kind.folder == "memory":
            # Removes reservations that no machine holds.
            admission.live_reservations(entry.path.parent)
            continue
        # All others go by their last use, unless they are soon made again.
        old = now - entry.used > DAYS * 86400
        if not (everything or old or entry.kind.always):
            continue
        try:
            _remove(entry.path)
        except FileNotFoundError:
            continue
        except locks.InUse:
            stayed.append(f'"{entry.path}" is in use by a build or a machine; it stays')
        except OSError as error:
            stayed.append(f'"{entry.path}" cannot be removed: {error.strerror}')
    return stayed


def _remove(path: Path) -> None:
    """Remove a file or a directory, unless it is in use.

    :raises InUse: when it is in use.
    """
    if path.is_dir():
        # Users of a directory lock it; nobody can begin to use it during its removal.
        with locks.exclusive(path, wait=False):
            shutil.rmtree(path)
    # QEMU locks parts of each disk that it has open.
    elif locks.has_holder(path):
        raise locks.InUse(str(path))
    else:
        path.unlink()


def run(args: argparse.Namespace) -> int:
    """List or clean; return 3 when an entry could not be removed."""
    root = load_settings().cache
    if args.action != "clean":
        listed = entries(root)
        print(
            as_json(root, listed)
            if getattr(args, "json", False)
            else as_text(root, listed, now=time.time()),
            end="",
        )
        return 0
    if not root.exists():
        print(f'there is nothing in "{root}"')
        return 0
    before = size_of(root)
    stayed = clean(root, everything=args.all, now=time.time())
    for sentence in stayed:
        print(sentence)
    after = size_of(root)
    # Never negative: another run may have filled the cache meanwhile.
    print(f'freed {human(max(0, before - after))}; {human(after)} stay in "{root}"')
    # An entry in use is no failure.
    return Outcome.HOST.exit_status if any("cannot" in each for each in stayed) else 0
