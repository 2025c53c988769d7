"""The report of a run of pytest: ``report.html`` in the run's folder, tests by images.

Works with pytest-xdist too: the data of a test comes from a worker with its report, as properties
that are also in pytest's own JUnit file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotplate.errors import HotplateError, Outcome
from hotplate.plugin import outcomes

if TYPE_CHECKING:
    from hotplate.plugin.server import ServerUnderTest
    from hotplate.report.html import Cell

#: The fixture that a test on an image uses.
IMAGE = "image"

#: Properties of a test: its image, the folder of its server, the reason of a second run.
ON, LEFT, AGAIN = "hotplate_image", "hotplate_folder", "hotplate_first_try"

PAGE = "report.html"


def image_of(item: pytest.Item) -> Path | None:
    """Return the image that a test is run on; None for a test of no image."""
    callspec = getattr(item, "callspec", None)
    image = callspec.params.get(IMAGE) if callspec is not None else None
    return image if isinstance(image, Path) else None


def note(item: pytest.Item, server: ServerUnderTest | None) -> None:
    """Add the data for the report to a test's properties, as soon as it is known."""
    properties = dict(item.user_properties)
    if (image := image_of(item)) is not None and ON not in properties:
        item.user_properties.append((ON, str(image)))
    if server is not None and properties.get(LEFT) != str(server.directory):
        item.user_properties[:] = [each for each in item.user_properties if each[0] != LEFT]
        item.user_properties.append((LEFT, str(server.directory)))


@dataclass
class _Test:
    outcome: str = "passed"
    seconds: float = 0.0
    folder: str = ""
    note: str = ""


class Results:
    """Collects the results of each test on each image, and writes the report at the end.

    :param folder: returns the run's folder, and makes it when it does not exist.
    :param images: the images, by the names used in the tests' names.
    """

    def __init__(self, folder: Callable[[], Path], images: Mapping[str, Path]) -> None:
        self._folder = folder
        self._names = {str(path): name for name, path in images.items()}
        self._tests: dict[tuple[str, str], _Test] = {}
        self._failed: list[Outcome] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the result of one phase of a test."""
        properties = {key: str(value) for key, value in report.user_properties}
        image = self._names.get(properties.get(ON, ""))
        if image is None:
            return
        # Setup, call and teardown each have a report.
        test = self._tests.setdefault((without(report.nodeid, image), image), _Test())
        test.seconds += report.duration
        test.folder = properties.get(LEFT, test.folder)
        test.note = properties.get(AGAIN, test.note)
        # A failure of any phase counts; a skip counts only without one.
        if report.failed or (report.skipped and test.outcome == "passed"):
            test.outcome = properties.get(outcomes.PROPERTY, report.outcome)
            # Of a skip pytest has the file, the line and the reason.
            if report.skipped and isinstance(report.longrepr, tuple):
                test.note = report.longrepr[2].removeprefix("Skipped: ")
        if report.failed:
            self._failed.append(Outcome(test.outcome))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set another exit status than 1 when no failure says anything about an image."""
        if exitstatus == pytest.ExitCode.TESTS_FAILED:
            # Tests unrelated to an image may have failed as well.
            of_images = len(self._failed) == session.testsfailed
            if of_images and (status := outcomes.exit_status(set(self._failed))) is not None:
                session.exitstatus = status

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the report, and print its path."""
        if not any(test.folder for test in self._tests.values()):
            return
        try:
            path = self._folder() / PAGE
            # Readable by the user alone; write_text() leaves the mode.
            path.touch(mode=0o600)
            path.write_text(self.page(path.parent), encoding="utf-8")
        except (HotplateError, OSError) as error:
            terminalreporter.write_line(f"hotplate: the report cannot be written: {error}")
        else:
            terminalreporter.write_line(f"hotplate: what was seen, test by test: {path}")

    def page(self, start: Path) -> str:
        """Return the report.

        :param start: its folder; links to the tests' reports are relative to it.
        """
        # Each run of pytest loads this module, and few have a test of an image.
        from hotplate.report.html import Cell, results

        rows: dict[str, dict[str, Cell]] = {}
        for (name, image), test in self._tests.items():
            own = Path(test.folder, PAGE) if test.folder else None
            rows.setdefault(name, {})[image] = Cell(
                test.outcome,
                test.seconds,
                report=os.path.relpath(own, start) if own is not None and own.exists() else "",
                note=test.note,
            )
        return results([*self._names.values()], rows)


def without(nodeid: str, image: str) -> str:
    """Return the name of a test without the image in its brackets."""
    head, bracket, tail = nodeid.partition("[")
    if not bracket:
        return nodeid
    # pytest joins the ids of a test's parameters by hyphens.
    kept = re.sub(rf"(^|-){re.escape(image)}(?=-|$)", "", tail.removesuffix("]"), count=1)
    return f"{head}[{kept.removeprefix('-')}]" if kept else head
