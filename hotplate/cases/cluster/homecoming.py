"""Store on this host the folder and the verdict of a case that ran on a worker."""

from __future__ import annotations

import contextlib
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cases.case_run import after_losses, nth
from hotplate.cases.cluster import folder_archive
from hotplate.cases.cluster.brought import Brought
from hotplate.cases.cluster.parcels import Pending
from hotplate.cases.side_by_side import CaseEnd
from hotplate.errors import HostError

if TYPE_CHECKING:
    from hotplate.report.artifacts import Artifacts
    from hotplate.verdict.verdict import Verdict


class Homecoming:
    """Receives the results of workers.

    :param base: the folder of all runs' folders.
    """

    def __init__(self, base: Path) -> None:
        self._base = base

    def keep_try(self, pending: Pending, brought: Brought) -> None:
        """Store a try that lost its machine in a folder beside the files of the last one."""
        with contextlib.suppress(HostError):
            artifacts = self._artifacts(pending)
            which = nth(len(pending.losses) + 1)
            artifacts.write_json(f"{which}-try.json", brought.verdict.to_json())
            self._unpack(brought, artifacts.folder / f"{which}-try")

    def take(self, pending: Pending, brought: Brought) -> CaseEnd:
        """Store the folder and the verdict of a case that ran; return its end."""
        folder: Path | None = None
        complaint = brought.complaint
        artifacts: Artifacts | None = None
        try:
            artifacts = self._artifacts(pending)
            folder = artifacts.folder
            self._unpack(brought, folder)
        except (HostError, OSError, tarfile.TarError) as error:
            complaint += f"hotplate test: {error}\n"
        verdict = self._as_here(pending, brought, str(folder or ""))
        if artifacts is not None:
            artifacts.write_json("verdict.json", verdict.to_json())
            artifacts.point()
        return _end(pending, verdict, folder, complaint)

    def without(self, pending: Pending, error: BaseException) -> CaseEnd:
        """Store a verdict for a case without a result; return its end."""
        from hotplate.events.log import EventLog
        from hotplate.verdict.verdict import of_error

        folder: Path | None = None
        with contextlib.suppress(HostError):
            folder = self._artifacts(pending).folder
        verdict = of_error(
            error,
            pending.case.subject,
            EventLog(),
            now=time.monotonic(),
            artifacts=str(folder or ""),
        )
        verdict = after_losses(verdict, pending.losses)
        if pending.artifacts is not None:
            pending.artifacts.write_json("verdict.json", verdict.to_json())
            pending.artifacts.point()
        return _end(pending, verdict, folder)

    def _as_here(self, pending: Pending, brought: Brought, folder: str) -> Verdict:
        """Return the verdict with this host's names."""
        verdict, case = brought.verdict, pending.case
        subject = replace(
            verdict.subject,
            image=case.subject.image,
            template=case.template.source,
            case=case.name,
            facts={**verdict.subject.facts, "worker": brought.worker},
        )
        return after_losses(replace(verdict, subject=subject, artifacts=folder), pending.losses)

    def _unpack(self, brought: Brought, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not brought.archive:
            return
        folder_archive.unpack(brought.archive, folder)
        report = folder / "report.html"
        if brought.folder and report.is_file():
            text = report.read_bytes()
            report.write_bytes(text.replace(brought.folder.encode(), str(folder).encode()))

    def _artifacts(self, pending: Pending) -> Artifacts:
        from hotplate.report.artifacts import Artifacts

        if pending.artifacts is None:
            pending.artifacts = Artifacts(self._base, pending.case.name)
        return pending.artifacts


def _end(pending: Pending, verdict: Verdict, folder: Path | None, complaint: str = "") -> CaseEnd:
    return CaseEnd(pending.case, verdict, folder, time.monotonic() - pending.began, complaint)
