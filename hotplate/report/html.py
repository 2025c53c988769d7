"""The report: one HTML file that needs no network and no script, the verdict at its top."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from hotplate.events import classify
from hotplate.events.log import Event
from hotplate.report import timeline
from hotplate.report.artifacts import redacted
from hotplate.report.picture import Picture
from hotplate.text import clean
from hotplate.verdict.stages import ORDER
from hotplate.verdict.verdict import ServerResult, StageTime, Verdict

SCREENSHOT = "screen.png"
CONSOLE_LINES = 400
REQUESTS = 400
VALUE_LIMIT = 20_000
OUTCOMES = ("passed", "failed", "host error", "machine lost", "skipped")
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class RunReport:
    """One run of a matrix, as :func:`matrix` shows it."""

    verdict: Verdict
    events: tuple[Event, ...]
    screenshot: bytes | None = None


@dataclass(frozen=True)
class Cell:
    """How one test went on one image, as :func:`results` shows it.

    :param outcome: ``passed``, ``skipped``, or whose fault it is that it failed (Outcome's words).
    :param report: the test's own report, relative to the page; "" when there is none.
    :param note: what else is to be said of it.
    """

    outcome: str
    seconds: float
    report: str = ""
    note: str = ""


def _esc(value: object) -> str:
    lines = str(value).split("\n")
    return escape("\n".join(clean(line) for line in lines), quote=True)


def report(verdict: Verdict, events: Iterable[Event], *, screenshot: bytes | None = None) -> str:
    """Return the report of one run.

    :param screenshot: a PNG of the guest's screen; by default ``screen.png`` of the artifacts.
    """
    return _page(str(verdict.subject), [RunReport(verdict, tuple(events), screenshot)])


def matrix(runs: Sequence[RunReport]) -> str:
    """Return the report of several runs: a table of images by stages, then each run."""
    return _page(f"{len(runs)} runs", runs)


def results(images: Sequence[str], rows: Mapping[str, Mapping[str, Cell]]) -> str:
    """Return the report of a run of pytest: a table of tests by images.

    :param rows: by the name of the test, then by that of the image.
    """
    cells = [cell for row in rows.values() for cell in row.values()]
    counts = Counter(cell.outcome for cell in cells)
    lines = []
    for name, row in rows.items():
        shown = "".join(_test(row.get(image)) for image in images)
        lines.append(f"<tr><td>{_esc(name)}</td>{shown}</tr>")
    head = "".join(f"<th>{_esc(image)}</th>" for image in images)
    word = "passed" if counts["passed"] + counts["skipped"] == len(cells) else "failed"
    counted = ", ".join(f"{counts[each]} {each}" for each in OUTCOMES if counts[each])
    body = (
        f'<section class="verdict {word}"><h1><span class="badge {word}">{word}</span>'
        f"{counted}</h1></section>"
        f'<section><table class="matrix"><tr><th>test</th>{head}</tr>{"".join(lines)}</table>'
        "</section>"
    )
    return _document(f"{len(cells)} tests", word, body)


def _test(cell: Cell | None) -> str:
    if cell is None:
        return '<td class="off">&middot;</td>'
    kind = {"passed": "yes", "skipped": "off"}.get(cell.outcome, "no")
    text = f"{_esc(cell.outcome)}, {cell.seconds:.1f} s"
    if cell.report:
        text = f'<a href="{escape(quote(cell.report), quote=True)}">{text}</a>'
    title = f' title="{_esc(cell.note)}"' if cell.note else ""
    return f'<td class="{kind}"{title}>{text}</td>'


def _page(title: str, runs: Sequence[RunReport]) -> str:
    body = [_matrix(runs)] if len(runs) > 1 else []
    for number, run in enumerate(runs, start=1):
        body += _run(run, number)
    passed = sum(run.verdict.passed for run in runs)
    return _document(title, "passed" if passed == len(runs) else "failed", "".join(body))


def _document(title: str, word: str, body: str) -> str:
    style = resources.files("hotplate.report").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing in the page may load or run anything, whatever a guest wrote.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{_esc(word)}: {_esc(title)}</title><style>{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _matrix(runs: Sequence[RunReport]) -> str:
    head = "".join(f"<th>{_esc(stage)}</th>" for stage in ORDER)
    rows = []
    for number, run in enumerate(runs, start=1):
        times = {each.stage: each for each in run.verdict.stages}
        at_fault = run.verdict.diagnosis.stage if run.verdict.diagnosis else None
        cells = []
        for stage in ORDER:
            each = times.get(stage)
            if stage == at_fault:
                cells.append('<td class="no">✗</td>')
            elif each is None or each.seconds is None:
                cells.append('<td class="off">&middot;</td>')
            else:
                cells.append(f'<td class="yes">{each.seconds:.1f} s</td>')
        badge = _badge(run.verdict)
        rows.append(
            f'<tr><td><a href="#run-{number}">{_esc(run.verdict.subject)}</a></td>'
            f"<td>{badge}</td>{''.join(cells)}</tr>"
        )
    good = sum(run.verdict.passed for run in runs)
    return (
        f"<section><h1>{good} of {len(runs)} passed</h1>"
        f'<table class="matrix"><tr><th>image</th><th></th>{head}</tr>{"".join(rows)}</table>'
        "</section>"
    )


def _badge(verdict: Verdict) -> str:
    kind = "passed" if verdict.passed else "failed"
    return f'<span class="badge {kind}">{_esc(verdict.outcome)}</span>'


def _run(run: RunReport, number: int) -> list[str]:
    verdict = run.verdict
    several = len(verdict.servers) > 1
    parts = [_head(verdict, number)]
    for server in verdict.by_server():
        seen = server.id or _first_server(run.events)
        name = f" of {_esc(server.name)}" if several else ""
        parts += [_timeline(run.events, seen, name), _stages(verdict, server, name)]
    parts += [_deployments(verdict), _outputs(verdict), _noticed(verdict)]
    parts += [_evidence(verdict), _screen(run)]
    parts.append(_requests(run.events))
    for server in verdict.by_server():
        seen = server.id or _first_server(run.events)
        parts.append(_console(run.events, seen, server.name if several else ""))
    return parts


def _first_server(events: Sequence[Event]) -> str:
    return next((each.server for each in events if each.source == "machine" and each.server), "")


def _deployments(verdict: Verdict) -> str:
    """How far each deployment came, where there are several."""
    rows = [(server.name, each) for server in verdict.servers for each in server.deployments]
    if len(rows) < 2:
        return ""
    lines = "".join(
        f'<tr><td class="stage">{_esc(each.label)}</td><td>{_esc(name)}</td>'
        f"<td>{_esc(each.group)}</td><td>{_esc(each.transport)}</td>"
        f"<td>{_esc(each.outcome)}</td></tr>"
        for name, each in rows
    )
    head = "".join(f"<th>{word}</th>" for word in ("deployment", "server", "group", "signal", ""))
    return f"<section><h2>Deployments</h2><table><tr>{head}</tr>{lines}</table></section>"


def _head(verdict: Verdict, number: int) -> str:
    diagnosis = verdict.diagnosis
    if diagnosis is not None:
        named = diagnosis.among or diagnosis.deployment
        where = f" ({_esc(named)})" if named else ""
        text = (
            f'<p class="told"><b>{_esc(diagnosis.stage)}</b>{where}: {_esc(diagnosis.seen)}.</p>'
            f'<p class="advice">What to do: {_esc(diagnosis.advice)}</p>'
        )
        others = verdict.reasons[:-1]
    else:
        text, others = "", verdict.reasons
    text += "".join(f'<p class="advice">{_esc(reason)}</p>' for reason in others)
    facts = {
        "stack": f"{verdict.status or 'none'} after {verdict.seconds:.1f} s",
        "template": verdict.subject.template,
        "server": verdict.subject.server,
        **verdict.subject.facts,
        "artifacts": verdict.artifacts,
    }
    rows = "".join(f"<dt>{_esc(k)}</dt><dd>{_esc(v)}</dd>" for k, v in facts.items() if v)
    stand_ins = "".join(f"<dt>stood in</dt><dd>{_esc(s)}</dd>" for s in verdict.subject.stand_ins)
    kind = "passed" if verdict.passed else "failed"
    return (
        f'<section class="verdict {kind}" id="run-{number}"><h1>{_badge(verdict)}'
        f'{_esc(verdict.subject)}</h1>{text}<dl class="facts">{rows}{stand_ins}</dl></section>'
    )


def _timeline(events: Sequence[Event], server: str, name: str = "") -> str:
    if not events:
        return ""
    legend = "".join(
        f'<i class="{tone}"></i>{words}'
        for tone, words in (
            ("guest", "seen on the guest's console"),
            ("served", "served by the harness"),
            ("good", "went well"),
            ("bad", "went wrong"),
            ("plain", "machine and stack"),
        )
    )
    picture = Picture(timeline.build(events, server)).svg()
    return (
        f"<section><h2>Timeline{name}, in seconds from power-on</h2>{picture}"
        f'<p class="legend">{legend}</p></section>'
    )


def _stages(verdict: Verdict, server: ServerResult, name: str) -> str:
    longest = max((each.seconds or 0.0 for each in server.stages), default=0.0) or 1.0
    decides = server.id == verdict.decided_by
    at_fault = verdict.diagnosis.stage if verdict.diagnosis and decides else None
    rows = []
    before = 0.0
    for each in server.stages:
        kind = "fault" if each.stage == at_fault else "missing" if each.seconds is None else ""
        shown = "" if kind == "missing" else redacted(each.evidence)
        rows.append(
            f'<tr class="{kind}"><td class="stage">{_esc(each.stage)}</td>'
            f'<td class="time">{_time(each)}</td><td>{_track(each, before, longest)}</td>'
            f'<td class="evidence">{_esc(shown)}</td></tr>'
        )
        before = before if each.seconds is None else each.seconds
    return (
        f"<section><h2>Stages{name}</h2><table><tr><th>stage</th>"
        '<th class="time">reached after</th><th></th><th>seen</th></tr>'
        f"{''.join(rows)}</table></section>"
    )


def _time(each: StageTime) -> str:
    if each.seconds is None:
        return "not reached"
    return f"{each.seconds:.1f} s"


def _track(each: StageTime, before: float, longest: float) -> str:
    if each.seconds is None:
        return ""
    left = 100 * max(0.0, before) / longest
    width = 100 * max(0.0, each.seconds - before) / longest
    return f'<div class="track"><i style="left:{left:.1f}%;width:{width:.1f}%"></i></div>'


def _outputs(verdict: Verdict) -> str:
    if not verdict.outputs:
        return ""
    rows = []
    for name, value in sorted(verdict.outputs.items()):
        text = value if isinstance(value, str) else json.dumps(value, indent=2, default=str)
        if len(text) > VALUE_LIMIT:
            text = f"{text[:VALUE_LIMIT]}\n... ({len(text)} characters, see verdict.json)"
        rows.append(f'<tr><td class="stage">{_esc(name)}</td><td><pre>{_esc(text)}</pre></td></tr>')
    return f"<section><h2>Outputs</h2><table>{''.join(rows)}</table></section>"


def _noticed(verdict: Verdict) -> str:
    if not verdict.noticed:
        return ""
    lines = "\n".join(_esc(redacted(str(each))) for each in verdict.noticed)
    return f"<section><h2>Noticed</h2><pre>{lines}</pre></section>"


def _evidence(verdict: Verdict) -> str:
    if verdict.diagnosis is None or not verdict.diagnosis.evidence:
        return ""
    lines = "\n".join(_esc(redacted(line)) for line in verdict.diagnosis.evidence)
    return f"<section><h2>Evidence</h2><pre>{lines}</pre></section>"


def _screen(run: RunReport) -> str:
    data = run.screenshot
    if data is None and run.verdict.artifacts:
        try:
            data = (Path(run.verdict.artifacts) / SCREENSHOT).read_bytes()
        except OSError:
            data = None
    if not data or not data.startswith(_PNG):
        return ""
    picture = base64.b64encode(data).decode("ascii")
    return (
        "<section><h2>The guest's screen at the end</h2>"
        f'<img class="screen" alt="the guest\'s screen" src="data:image/png;base64,{picture}">'
        "</section>"
    )


def _requests(events: Sequence[Event]) -> str:
    asked = [event for event in events if classify.is_request(event)]
    if not asked:
        return ""
    zero = next((e.at for e in events if e.source == "machine"), asked[0].at)
    rows = "".join(
        f'<tr><td class="time">{event.at - zero:.2f} s</td>'
        f"<td>{_esc(redacted(classify.describe(event)))}</td></tr>"
        for event in asked[-REQUESTS:]
    )
    more = f", the last {REQUESTS}" if len(asked) > REQUESTS else ""
    return (
        f"<section><details><summary>Requests served ({len(asked)}{more})</summary>"
        f"<table>{rows}</table></details></section>"
    )


def _console(events: Sequence[Event], server: str, name: str = "") -> str:
    lines = [
        text
        for event in events
        if event.server == server and (text := classify.console_text(event)) is not None
    ]
    if not lines:
        return ""
    whose = f"console of {_esc(name)}" if name else "guest's console"
    more = f", the last {CONSOLE_LINES}" if len(lines) > CONSOLE_LINES else ""
    text = "\n".join(_esc(line) for line in lines[-CONSOLE_LINES:])
    return (
        f"<section><details><summary>The {whose} ({len(lines)} lines{more})</summary>"
        f"<pre>{text}</pre></details></section>"
    )
