"""Remove the folders of earlier runs, down to the number that the user wants to keep."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hotplate import locks
from hotplate.report.artifacts import LAST

_OF_A_RUN = re.compile(r"\d{8}T\d{6}Z-.")


def remove_old_runs(base: Path, keep: int) -> list[str]:
    """Remove the folders of earlier runs except the newest.

    The folder of a run in progress stays, as does the one that ``last`` points to, and any whose
    name is not of the form of :class:`~hotplate.report.artifacts.Artifacts` (the session of
    ``hotplate up``).

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
            with locks.exclusive(folder, wait=False):
                shutil.rmtree(folder)
        except locks.InUse:
            continue
        except OSError as error:
            problems.append(
                f'the folder of an earlier run "{folder}" cannot be removed: {error.strerror}'
            )
    return problems
