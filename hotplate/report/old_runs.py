"""The folders of earlier runs, which go when a user wants only so many of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hotplate import locks
from hotplate.report.artifacts import LAST

_OF_A_RUN = re.compile(r"\d{8}T\d{6}Z-.")


def remove_old_runs(base: Path, keep: int) -> list[str]:
    """Remove the folders of earlier runs but for the newest.

    One of a run that still goes on stays, as does the one that ``last`` points to, and whatever has
    no name as :class:`~hotplate.report.artifacts.Artifacts` gives it (the session of ``hotplate
    up``).

    :param base: where the folders of all runs lie.
    :param keep: how many of the newest stay.
    :return: what could not be removed, a sentence each.
    """
    try:
        last = (base / LAST).resolve()
        # By name is by time.  What a link names is nobody's to remove.
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
