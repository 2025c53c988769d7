"""How the cases of the last command went, for ``--only-failed``; beside the folders of the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cli.cases import Case

if TYPE_CHECKING:
    from hotplate.verdict.verdict import Verdict

NAME = "cases.json"
FORMAT = 1


class LastCases:
    """The file ``cases.json``: each case of the last command that had several, and its outcome.

    One that is missing or damaged is as good as none.

    :param folder: in which the folders of the runs are.
    :ivar there: whether there was such a command.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = _read(folder / NAME)
        self._now: list[dict[str, str]] = []
        self.there = bool(self._before)

    def failed(self, cases: Sequence[Case]) -> list[Case]:
        """Return those that did not pass then, or did not run; the others are kept as they are."""
        passed = [each for each in self._before if each.get("outcome") == "passed"]
        self._now = [each for each in passed if any(_is_of(each, case) for case in cases)]
        return [case for case in cases if not any(_is_of(each, case) for each in self._now)]

    def remember(self, case: Case, verdict: Verdict) -> None:
        """Keep how a case went."""
        self._now.append({**_identity(case), "outcome": str(verdict.outcome)})

    def write(self) -> None:
        """Write how those went that are kept."""
        # Loaded here: what writes is much to load for --help.
        from hotplate.report.artifacts import Folder

        Folder(self._folder).write_json(NAME, {"format": FORMAT, "cases": self._now})


def _identity(case: Case) -> dict[str, str]:
    return {"case": case.name, "image": str(case.image), "template": case.template.source}


def _is_of(entry: dict[str, str], case: Case) -> bool:
    return _identity(case).items() <= entry.items()


def _read(file: Path) -> list[dict[str, str]]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        cases = document["cases"] if document["format"] == FORMAT else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [each for each in cases if isinstance(each, dict)] if isinstance(cases, list) else []
