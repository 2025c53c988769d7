"""The results of the last command's cases, for ``--only-failed``; beside the runs' folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotplate.cases.table import Case
from hotplate.report.artifacts import Folder
from hotplate.verdict.verdict import Verdict

NAME = "cases.json"
# Cases of one name may be of another image or template in the next command.
IDENTITY = ("case", "image", "template")
FORMAT = 1


class LastCases:
    """The file ``cases.json``: each case of the last command with several, and its outcome.

    A missing or damaged file counts as none.

    :param folder: in which the folders of the runs are.
    :ivar there: whether there was such a command.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = _read(folder / NAME)
        self._kept: list[dict[str, str]] = []
        self._now: list[dict[str, str]] = []
        self.there = bool(self._before)

    def failed(self, cases: Sequence[Case]) -> list[Case]:
        """Return those that did not pass then, or did not run; keep the results of the others."""
        wanted = {_key(_identity(case)) for case in cases}
        passed = [each for each in self._before if each.get("outcome") == "passed"]
        # write() keeps their results; without them the next --only-failed would run these cases
        # again.
        self._kept = [each for each in passed if _key(each) in wanted]
        done = set(map(_key, self._kept))
        return [case for case in cases if _key(_identity(case)) not in done]

    def remember(self, case: Case, verdict: Verdict) -> None:
        """Record the result of a case."""
        self._now.append({**_identity(case), "outcome": str(verdict.outcome)})

    def write(self) -> None:
        """Write the recorded results."""
        Folder(self._folder).write_json(NAME, {"format": FORMAT, "cases": self._kept + self._now})


def _identity(case: Case) -> dict[str, str]:
    return {"case": case.name, "image": str(case.image), "template": case.template.source}


def _key(entry: Mapping[str, object]) -> tuple[str, ...]:
    """Return the entry's identity; non-string values count as ""."""
    values = (entry.get(name) for name in IDENTITY)
    return tuple(each if isinstance(each, str) else "" for each in values)


def _read(file: Path) -> list[dict[str, str]]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        cases = document["cases"] if document["format"] == FORMAT else []
    # Missing, damaged or of another format: then every case counts as new.
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [each for each in cases if isinstance(each, dict)] if isinstance(cases, list) else []
