"""The report: one HTML file that needs no network and no script, the verdict at its top."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hotplate.errors import Outcome
from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.topology import of_events
from hotplate.report import timeline
from hotplate.report.artifacts import REPORT, EarlierRun, redacted
from hotplate.report.picture import Picture, draw_networks
from hotplate.text import clean
from hotplate.verdict.diagnosis import Diagnosis
from hotplate.verdict.stages import ORDER, Stage
from hotplate.verdict.verdict import ServerResult, Verdict

SCREENSHOT = "screen.png"
CONSOLE_LINES = 400
REQUESTS = 400
VALUE_LIMIT = 20_000
OUTCOMES = ("passed", "failed", "host error", "machine lost", "skipped")
LEGEND = (
    ("guest", "seen on the guest's console"),
    ("served", "served by the harness"),
    ("good", "went well"),
    ("bad", "went wrong"),
    ("plain", "machine and stack"),
)
#: Packages in the table of sizes, the largest first.
MAX_SIZES = 40

MAX_ROWS = 2000
COMPARED = ("facts", "hooks", "packages", "services", "users")
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class RunReport:
    """One run of a matrix, as :func:`matrix` shows it.

    :param page: the run's own report, relative to the matrix; "" when there is none.
    :param earlier: the run of the same case before it, None when it is not known.
    """

    verdict: Verdict
    events: tuple[Event, ...]
    page: str = ""
    earlier: EarlierRun | None = None


@dataclass(frozen=True)
class Cell:
    """The result of one test on one image, as :func:`results` shows it.

    :param outcome: ``passed``, ``skipped``, or the kind of failure (Outcome's words).
    :param report: the test's own report, relative to the page; "" when there is none.
    :param note: a remark.
    """

    outcome: str
    seconds: float
    report: str = ""
    note: str = ""


def _finalize(value: object) -> object:
    """Clean a value for a page; Jinja2 escapes it afterwards."""
    if isinstance(value, Markup):
        return value
    return "\n".join(clean(line) for line in str(value).split("\n"))


def _redacted(value: object) -> str:
    return redacted(str(value))


def _quoted(path: str) -> str:
    """Return a path as a URL; its bytes need not be UTF-8 (PEP 383)."""
    return quote(path.encode(errors="surrogateescape"))


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"


@cache
def _pages() -> Environment:
    pages = Environment(
        loader=PackageLoader("hotplate.report"),
        autoescape=True,
        # A misspelt name in a page is an error, not an empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    pages.filters |= {
        "redacted": _redacted,
        "seconds": _seconds,
        "megabytes": _megabytes,
        "quote": _quoted,
    }
    style = resources.files("hotplate.report").joinpath("report.css").read_text(encoding="utf-8")
    pages.globals |= {
        "style": Markup(style),  # noqa: S704 - ours
        "legend": LEGEND,
        "max_requests": REQUESTS,
        "max_lines": CONSOLE_LINES,
    }
    return pages


def _render(template: str, **values: object) -> str:
    return _pages().get_template(template).render(values)


def report(verdict: Verdict, events: Iterable[Event], *, earlier: EarlierRun | None = None) -> str:
    """Return the report of one run, with ``screen.png`` of its artifacts.

    :param earlier: the run of the same case before it, which it is compared with.
    """
    runs = [RunReport(verdict, tuple(events), earlier=earlier)]
    return _page(str(verdict.subject), runs)


def matrix(runs: Sequence[RunReport]) -> str:
    """Return the report of several runs: a table of images by stages, then each run."""
    return _page(f"{len(runs)} runs", runs)


def results(images: Sequence[str], rows: Mapping[str, Mapping[str, Cell]]) -> str:
    """Return the report of a run of pytest: a table of tests by images.

    :param rows: by the name of the test, then by that of the image.
    """
    cells = [cell for row in rows.values() for cell in row.values()]
    counts = Counter(cell.outcome for cell in cells)
    return _render(
        "results.html",
        title=f"{len(cells)} tests",
        word=_word(counts["passed"] + counts["skipped"] == len(cells)),
        counted=", ".join(f"{counts[each]} {each}" for each in OUTCOMES if counts[each]),
        images=images,
        rows=rows,
    )


def images(document: Mapping[str, Any]) -> str:
    """Return the report of the comparison of two images.

    :param document: the comparison, as ``hotplate diff --json`` prints it.
    """
    first, second = (image["sizes"] for image in document["images"])
    sizes = [(name, first.get(name, 0), second.get(name, 0)) for name in {*first, *second}]
    return _render(
        "images.html",
        title=" and ".join(Path(image["image"]).name for image in document["images"]),
        word="images",
        images=document["images"],
        sizes=sorted(sizes, key=lambda row: (-max(row[1:]), row[0]))[:MAX_SIZES],
        max_rows=MAX_ROWS,
        parts={part: document[part] for part in COMPARED},
        owners=document["owners"],
    )


def _word(passed: bool) -> str:
    return "passed" if passed else "failed"


def _page(title: str, runs: Sequence[RunReport]) -> str:
    passed = sum(run.verdict.passed for run in runs)
    shown = {each.stage for run in runs for each in run.verdict.stages}
    return _render(
        "runs.html",
        title=title,
        word=_word(passed == len(runs)),
        passed=passed,
        order=[stage for stage in ORDER if stage in shown],
        runs=[_Run(number, run) for number, run in enumerate(runs, start=1)],
    )


class _Run:
    """One run as the templates show it."""

    def __init__(self, number: int, run: RunReport) -> None:
        verdict = run.verdict
        self.number = number
        self.page = run.page
        self.verdict = verdict
        self.kind = _word(verdict.passed)
        reasons = verdict.reasons[:-1] if verdict.diagnosis else verdict.reasons
        self.reasons = [each for each in reasons if each not in verdict.unmet]
        self.facts = [*_facts(verdict).items()]
        self.facts += [("stood in for", each) for each in verdict.subject.stand_ins]
        self.cells = {stage: _cell(verdict, stage) for stage in ORDER}
        self.servers = [_Server(run, server) for server in verdict.by_server()]
        self.deployments = [
            (server.name, each) for server in verdict.servers for each in server.deployments
        ]
        self.outputs = [(name, _text(each)) for name, each in sorted(verdict.outputs.items())]
        self.topology = draw_networks(of_events(run.events))
        self.together = _together(run)
        self.compared = _Compared(verdict, run.earlier) if run.earlier else None
        self.screenshot = _screenshot(verdict.artifacts)
        asked = [event for event in run.events if classify.is_request(event)]
        self.asked = len(asked)
        self.requests = _requests(run.events, asked[-REQUESTS:])


def _together(run: RunReport) -> Markup:
    """Return a timeline with a band for each server, "" where there is only one server."""
    names = {each.id: each.name for each in run.verdict.servers}
    if len(names) < 2 or not run.events:
        return Markup("")
    # The picture escapes by itself.
    return Markup(Picture(timeline.build_together(run.events, names)).svg())  # noqa: S704


class _Server:
    """One server of a run as the templates show it."""

    def __init__(self, run: RunReport, server: ServerResult) -> None:
        events, verdict = run.events, run.verdict
        identity = server.id or _first_server(events)
        decides = server.id == verdict.decided_by
        at_fault = verdict.diagnosis if decides else None
        self.of_name = f" of {server.name}" if len(verdict.servers) > 1 else ""
        self.rows = _rows(server, at_fault)
        self.timeline = (
            # The picture escapes by itself.
            Markup(Picture(timeline.build(events, identity)).svg()) if events else ""  # noqa: S704
        )
        self.console = [
            text
            for event in events
            if event.server == identity and (text := classify.console_text(event)) is not None
        ]


@dataclass(frozen=True)
class _Row:
    """A stage of a server: the time, and its bar in percent of the whole time."""

    stage: Stage
    kind: str
    time: str
    evidence: str
    left: str = ""
    width: str | None = None


def _rows(server: ServerResult, at_fault: Diagnosis | None) -> list[_Row]:
    # Never 0, as the bars are divided by it.
    longest = max((each.seconds or 0.0 for each in server.stages), default=0.0) or 1.0
    rows = []
    before = 0.0
    for each in server.stages:
        if each.seconds is None:
            if at_fault is not None and each.stage == at_fault.stage:
                # The advice stands at the top, and may differ from that of the stage.
                rows.append(_Row(each.stage, "fault", each.absence, redacted(at_fault.seen)))
            else:
                rows.append(_Row(each.stage, "missing", each.absence, ""))
            continue
        rows.append(
            _Row(
                each.stage,
                "fault" if at_fault is not None and each.stage == at_fault.stage else "",
                _seconds(each.seconds),
                redacted(each.evidence),
                left=f"{100 * max(0.0, before) / longest:.1f}",
                width=f"{100 * max(0.0, each.seconds - before) / longest:.1f}",
            )
        )
        before = each.seconds
    return rows


class _Compared:
    """A run and the earlier one of its case, as the templates show them."""

    def __init__(self, verdict: Verdict, earlier: EarlierRun) -> None:
        before = earlier.verdict
        self.page = f"../{earlier.folder.name}/{REPORT}"
        # As Artifacts names it: 20261128T140033Z-web.qcow2.
        name = earlier.folder.name
        self.began = f"{name[:4]}-{name[4:6]}-{name[6:8]} {name[9:11]}:{name[11:13]} UTC"
        self.outcomes = str(before["outcome"]), str(verdict.outcome)
        self.kinds = [_word(each == Outcome.PASSED) for each in self.outcomes]
        old, new = _times(before.get("stages")), verdict.times
        longest = max([*old.values(), *new.values()], default=0.0) or 1.0
        self.rows = [
            _ComparedRow(
                stage,
                _time(old.get(stage)),
                _time(new.get(stage)),
                _change(old.get(stage), new.get(stage)),
                [
                    (tone, f"{100 * each[stage] / longest:.1f}")
                    for tone, each in (("plain", old), ("good", new))
                    if stage in each
                ],
            )
            for stage in ORDER
            if stage in old or stage in new
        ]


@dataclass(frozen=True)
class _ComparedRow:
    """A stage of two runs: times, their difference, and bars in percent of the longest time.

    :param bars: the class and the width of each run that reached it.
    """

    stage: Stage
    before: str
    now: str
    change: str
    bars: Sequence[tuple[str, str]]


def _times(stages: object) -> dict[str, float]:
    """Return the seconds to each stage, of a document that may be damaged."""
    listed = stages if isinstance(stages, list) else []
    return {
        str(each.get("stage")): float(seconds)
        for each in listed
        if isinstance(each, dict)
        and isinstance(seconds := each.get("seconds"), int | float)
        and not each.get("implied")
    }


def _time(seconds: float | None) -> str:
    return "·" if seconds is None else _seconds(seconds)


def _change(before: float | None, now: float | None) -> str:
    if before is None or now is None:
        return "missing" if now is None else "new"
    return f"{now - before:+.1f} s"


def _cell(verdict: Verdict, stage: Stage) -> tuple[str, str]:
    """Return the class and the text of a stage in the matrix."""
    seconds = {each.stage: each.seconds for each in verdict.stages}.get(stage)
    if verdict.diagnosis is not None and stage == verdict.diagnosis.stage:
        return "no", "✗"
    return ("off", "·") if seconds is None else ("yes", _seconds(seconds))


def _facts(verdict: Verdict) -> dict[str, str]:
    after = f" after {verdict.seconds:.1f} s" if verdict.seconds else ""
    return {
        "stack": f"{verdict.status or 'none'}{after}",
        "template": verdict.subject.template,
        "server": verdict.subject.server,
        **verdict.subject.facts,
        "artifacts": verdict.artifacts,
    }


def _first_server(events: Sequence[Event]) -> str:
    return next((each.server for each in events if each.source == "machine" and each.server), "")


def _text(value: object) -> str:
    """Return an output as text, of bounded length."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, default=str)
    if len(text) > VALUE_LIMIT:
        return f"{text[:VALUE_LIMIT]}\n... ({len(text)} characters, see verdict.json)"
    return text


def _screenshot(artifacts: str) -> str:
    """Return the PNG of the guest's screen in base64, "" when there is none."""
    try:
        data = (Path(artifacts) / SCREENSHOT).read_bytes() if artifacts else b""
    except OSError:
        return ""
    return base64.b64encode(data).decode("ascii") if data.startswith(_PNG) else ""


def _requests(events: Sequence[Event], asked: Sequence[Event]) -> list[tuple[str, str]]:
    """Return for each request the seconds from power-on, and its description."""
    zero = next((e.at for e in events if e.source == "machine"), None)
    if zero is None:
        # Without an event of a machine the first request is the start.
        zero = next((e.at for e in events if classify.is_request(e)), 0.0)
    return [(f"{event.at - zero:.2f}", redacted(classify.describe(event))) for event in asked]
