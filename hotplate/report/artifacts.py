"""The folder with all artifacts of a run, passed or not.

A file that cannot be written never costs the verdict: the first problem is kept as a sentence in
:attr:`Folder.problem`, and the run continues.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotplate import locks
from hotplate.errors import HostError, Outcome
from hotplate.events.event import Event
from hotplate.events.kinds import GUEST_SERVICES
from hotplate.text import file_name, map_json
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.verdict import Subject, Verdict

LAST = "last"
VERDICT = "verdict.json"
REPORT = "report.html"
PRIVATE = 0o600

#: The databases of a run's clouds, with their journals; they contain parameters, user data and
#: passwords.
DATABASES = "**/cloud/*.db*"

_OF_A_RUN = re.compile(r"\d{8}T\d{6}Z-.")

#: Folders of earlier runs that are searched for one of the same case.
MAX_LOOKED_AT = 20

#: A disk with fewer free bytes counts as full.
FULL = 64 * 1024

# Query parameters that let their reader act in the guest's name.
_SECRETS = re.compile(
    r"(?i)([?&](?:signature|awsaccesskeyid|temp_url_sig|x-auth-token|token|secret)=)[^&\s\"']*"
)
# Keystone's tokens, as the attributes "curl_cli" and "token" of a wait condition handle have them:
# in the header of a command, and alone (Fernet: base64 of the version, 0x80, and of a time).
_HEADERS = re.compile(r"(?i)(\bx-(?:auth|subject)-token[\"']?: *[\"']?)(?!\$)[^\s\"',]+")
_TOKENS = re.compile(r"()\bgAAAA[\w-]{75,}(?:=|%3D){0,2}")
_SENTENCES = {
    errno.ENOSPC: ("the disk is full", "free some space: df -h {folder}"),
    errno.EDQUOT: ("the disk quota is used up", "free some space: df -h {folder}"),
    errno.EROFS: ("the file system is read-only", "name another folder with --artifacts"),
    errno.EACCES: ("permission is denied", "name another folder with --artifacts"),
    errno.EPERM: ("permission is denied", "name another folder with --artifacts"),
    errno.ENOTDIR: ("a part of the path is not a folder", "name another folder with --artifacts"),
}


def redacted(text: str) -> str:
    """Return text with the signatures, keys and tokens of URLs, and Keystone's tokens, replaced."""
    for pattern in (_SECRETS, _HEADERS, _TOKENS):
        text = pattern.sub(r"\1REDACTED", text)
    return text


def _redacted(value: Any) -> Any:
    return redacted(value) if isinstance(value, str) else value


def json_bytes(document: object, *, indent: int | None = 2) -> bytes:
    """Return a document as JSON that every reader accepts.

    Values unknown to JSON become text: ``NaN`` and the infinities too, which Python would write as
    words of its own (RFC 8259, 6).  A file name that is not UTF-8 keeps its bytes as escapes.
    """
    try:
        text = _dumps(document, indent)
    except ValueError:
        text = _dumps(map_json(document, _finite), indent)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _dumps(document: object, indent: int | None) -> str:
    """Return a document as JSON.

    :raises ValueError: when a number in it is ``NaN`` or infinite.
    """
    return json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False, default=str)


def json_line(document: object) -> str:
    """Return a document as a line of JSON in ASCII, which every stream can write."""
    return json.dumps(map_json(document, _finite), default=str) + "\n"


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def event_json(event: Event, start: float) -> dict[str, object]:
    """Return an event as JSON types.

    :param start: the monotonic time from which ``seconds`` counts.
    """
    return {
        "seconds": round(event.at - start, 4),
        "wall": round(event.wall, 3),
        "source": event.source,
        "kind": event.kind,
        "server": event.server,
        **({"detail": map_json(event.detail, _redacted)} if event.detail else {}),
    }


def _host_error(path: Path, error: OSError) -> HostError:
    # Path.is_dir() raises without permission to look; os.path.isdir() returns False.
    what, hint = _SENTENCES.get(error.errno or 0, (error.strerror or str(error), ""))
    folder = path if os.path.isdir(path) else path.parent  # noqa: PTH112
    return HostError(
        f'the artifacts cannot be written to "{path}": {what}',
        hint=hint.format(folder=shlex.quote(str(folder))),
    )


def is_full(folder: Path) -> bool:
    """Return True when the disk under a folder is full; then no file on it can be trusted."""
    try:
        free = os.statvfs(folder)
    except OSError:
        return False
    # f_bavail leaves out the blocks that only root may use.
    return free.f_bavail * free.f_frsize < FULL


class Folder:
    """A folder that exists, and the artifacts in it.

    :ivar problem: the first file that could not be written, as a sentence.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem: HostError | None = None

    def write(self, name: str, data: bytes | str, *, mode: int = PRIVATE) -> Path | None:
        """Write a file whole: temporary name, then rename.

        :param name: its name inside of the folder; a ``/`` makes a subfolder.
        :return: its path, None when it could not be written (see :attr:`problem`).
        """
        # Half of a surrogate pair cannot be encoded.
        raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
        path = self.folder / name
        # In the same folder, because a rename does not leave its file system.
        temporary = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # With the mode from the start: no other user can open the file before a chmod.
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(handle, "wb") as stream:
                stream.write(raw)
            temporary.replace(path)
        except OSError as error:
            # A part of a file is worth nothing, and takes room on a full disk.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self.problem = self.problem or _host_error(self.folder, error)
            return None
        return path

    def copy(self, source: Path, name: str | None = None) -> Path | None:
        """Copy a file of the user's (a template, an environment) into the folder, mode 0600."""
        try:
            data = source.read_bytes()
        except OSError as error:
            unread = HostError(f'"{source}" cannot be read: {error.strerror}')
            self.problem = self.problem or unread
            return None
        return self.write(name or source.name, data)

    def write_json(self, name: str, document: object) -> Path | None:
        """Write a document as JSON; values unknown to JSON are written as text."""
        return self.write(name, json_bytes(document))

    def remove(self, pattern: str) -> None:
        """Remove the files in the folder, and below it, that match a pattern of ``glob``."""
        try:
            for each in self.folder.glob(pattern):
                each.unlink(missing_ok=True)
        except OSError as error:
            kept = HostError(f'"{error.filename}" cannot be removed: {error.strerror}')
            self.problem = self.problem or kept

    def write_events(self, events: Iterable[Event]) -> None:
        """Write ``timeline.json`` (all events) and ``requests.jsonl`` (the guests' requests)."""
        listed = list(events)
        start = next(
            (each.at for each in listed if each.source == "machine" and each.kind == "power-on"),
            listed[0].at if listed else 0.0,
        )
        lines = [json_bytes(event_json(event, start), indent=None) for event in listed]
        # Each event in a line: Python's JSON is three times as fast without an indentation.
        self.write(
            "timeline.json", b"[\n" + b",\n".join(each.rstrip() for each in lines) + b"\n]\n"
        )
        asked = [event.source in GUEST_SERVICES for event in listed]
        self.write("requests.jsonl", b"".join(itertools.compress(lines, asked)))

    def write_output(self, output: HookOutput, *, server: str, label: str, group: str) -> None:
        """Write the whole output of a deployment to a file below ``deployments``.

        The cloud that has it ends with the run, and the last line of a verdict has one line of it.

        :param output: without secrets.
        :param server: its name; "" where there is only one.
        :param label: of the deployment.
        """
        plain = [file_name(each) for each in (server, label) if each]
        of = f" on the server {server}" if server else ""
        text = (
            f"deployment {label} ({group}){of}\n"
            f"deploy_status_code: {output.status_code}\n"
            f"\n== deploy_stderr ==\n{output.stderr.rstrip()}\n"
            f"\n== deploy_stdout ==\n{output.stdout.rstrip()}\n"
        )
        self.write("/".join(["deployments", *plain]) + ".txt", text)

    def finish(
        self, verdict: Verdict, events: Iterable[Event], *, report: str | None = None
    ) -> None:
        """Write the verdict, the events and the report.

        The verdict is written first: on a disk that is nearly full it is worth most.

        :param report: the HTML report.
        """
        self.write_json(VERDICT, verdict.to_json())
        self.write_events(events)
        if report is not None:
            self.write(REPORT, report)


class Artifacts(Folder):
    """The folder of one run: ``<base>/<UTC time>-<name>``, and ``<base>/last`` that points to it.

    ::

        artifacts = Artifacts(base, "image.qcow2")
        machine = QemuMachine(..., directory=artifacts.folder)      # console.log, qemu.sh
        ...
        artifacts.finish(verdict, events)
        if artifacts.problem:
            print(artifacts.problem, file=sys.stderr)

    The folder is locked as long as this object exists, so that another run does not remove it
    (:func:`remove_old_runs`).

    :param base: the parent of the folders of all runs; made when it is missing.
    :param name: of the case or of pytest's worker; becomes part of the folder's name.
    :raises HostError: when no folder can be made there.
    """

    def __init__(self, base: Path, name: str) -> None:
        self.base = base
        self._pointed = False
        stem = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        # Shorter than others: the time and a number are parts of the name, too.
        label = file_name(name, longest=60, otherwise="run")
        try:
            base.mkdir(parents=True, exist_ok=True)
            super().__init__(self._make(stem, label))
            self._held = contextlib.ExitStack()
            self._held.enter_context(locks.shared(self.folder))
        except OSError as error:
            raise _host_error(base, error) from error

    def _make(self, stem: str, label: str) -> Path:
        # Two runs of one image in the same second get folders of their own.
        for number in range(1, 1000):
            suffix = "" if number == 1 else f".{number}"
            folder = self.base / f"{stem}-{label}{suffix}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                return folder
        raise FileExistsError(errno.EEXIST, "a thousand folders of this second", str(self.base))

    def finish(
        self, verdict: Verdict, events: Iterable[Event], *, report: str | None = None
    ) -> None:
        """Write the same as :meth:`Folder.finish`, and point ``last`` at this folder."""
        super().finish(verdict, events, report=report)
        self.point()

    def begin(self, subject: Subject) -> None:
        """Point ``last`` at this folder, with a verdict that holds if nothing else is written.

        :param subject: the subject of the test.
        """
        unfinished = Verdict(
            subject=subject,
            outcome=Outcome.INTERRUPTED,
            status="",
            reasons=("the run is still going on, or was killed before it could report",),
            stages=(),
            artifacts=str(self.folder),
        )
        self.write_json(VERDICT, unfinished.to_json())
        self.point()

    def point(self) -> None:
        """Point ``last`` at this folder, unless it pointed here before and now at a newer run.

        By rename, so that the link exists at any time.
        """
        link = self.base / f".{LAST}.{self.folder.name}"
        try:
            # Several runs may end at a time: the look at the link and its replacement are one step.
            with locks.exclusive(self.base):
                if self._pointed and self._newer_has_it():
                    return
                link.symlink_to(self.folder.name)
                link.replace(self.base / LAST)
                self._pointed = True
        except OSError as error:
            with contextlib.suppress(OSError):
                link.unlink(missing_ok=True)
            self.problem = self.problem or _host_error(self.base / LAST, error)

    def _newer_has_it(self) -> bool:
        """Return True when ``last`` points at a run that began later, by the time in its name."""
        try:
            name = (self.base / LAST).readlink().name
        except OSError:
            return False
        return name.partition("-")[0] > self.folder.name.partition("-")[0]


@dataclass(frozen=True)
class EarlierRun:
    """The run of the same case before another one, as its folder has it.

    :param verdict: its ``verdict.json``.
    """

    folder: Path
    verdict: Mapping[str, Any]


def earlier_run(folder: Path, case: str) -> EarlierRun | None:
    """Return the newest earlier run of a case beside a run's folder, which said something.

    :param folder: that of the run, of :class:`Artifacts`.
    :param case: the name of the case.
    """
    said = (Outcome.PASSED, Outcome.FAILED, Outcome.GIVEN_UP)
    try:
        names = sorted(each.name for each in folder.parent.iterdir() if _OF_A_RUN.match(each.name))
    except OSError:
        return None
    earlier = [each for each in names if each < folder.name and _label(each) == _label(folder.name)]
    for name in reversed(earlier[-MAX_LOOKED_AT:]):
        # It may be the folder of a killed run, or be removed meanwhile.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            verdict = json.loads((folder.with_name(name) / VERDICT).read_bytes())
            if verdict["case"] == case and verdict["outcome"] in said:
                return EarlierRun(folder.with_name(name), verdict)
    return None


def _label(name: str) -> str:
    """Return a folder's name without its time, and without the number of its second."""
    return re.sub(r"\.\d{1,3}$", "", name.partition("-")[2])


def remove_old_runs(base: Path, keep: int) -> list[str]:
    """Remove the folders of earlier runs except the newest.

    The folder of a run in progress stays, as does the one that ``last`` points to, and any whose
    name is not of the form of :class:`Artifacts` (the session of ``hotplate up``).

    :param base: the parent of the folders of all runs.
    :param keep: how many of the newest stay.
    :return: the folders that could not be removed, a sentence each.
    """
    try:
        last = (base / LAST).resolve()
        # The order of names is that of time.  The target of a link is not ours to remove.
        folders = sorted(
            each
            for each in base.iterdir()
            if _OF_A_RUN.match(each.name) and each.is_dir() and not each.is_symlink()
        )
    except OSError:
        return []
    problems = []
    for folder in folders[: max(0, len(folders) - keep)]:
        if folder.resolve() == last:
            continue
        try:
            # A run that goes on holds a shared lock.
            with locks.exclusive(folder, wait=False):
                shutil.rmtree(folder)
        except locks.InUse:
            continue
        except OSError as error:
            problems.append(
                f'the folder of an earlier run "{folder}" cannot be removed: {error.strerror}'
            )
    return problems
