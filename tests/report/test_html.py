"""The report, as text and in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.events.event import Event
from hotplate.report import html, picture, timeline
from hotplate.report.artifacts import EarlierRun

EVIL = '<script>document.title="pwned"</script><img src=x onerror="document.title=1">&"\''
VOID = {"meta", "img", "br", "link", "input"}


class Balance(HTMLParser):
    """Checks that every opened element is closed, and keeps the attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def parsed(text: str) -> Balance:
    balance = Balance()
    balance.feed(text)
    balance.close()
    assert balance.stack == []
    return balance


def png(width: int = 4, height: int = 4) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + b"\x40\x80\xc0" * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def verdict_of(story, status="CREATE_COMPLETE", image="a.qcow2", **more):
    return story.result(status, image=image, facts={"accelerator": "tcg"}, **more)


def test_verdict_stands_at_the_top(passed):
    text = html.report(verdict_of(passed, outputs={"result": "hello"}), passed.events)
    parsed(text)
    assert text.index("passed</span>") < text.index("<svg")
    assert "hello" in text


def test_failure_shows_stage_reason_and_advice_first(story):
    story.up()
    story.poll(403, times=3)
    text = html.report(verdict_of(story, "CREATE_FAILED"), story.events)
    parsed(text)
    head = text[: text.index("<svg")]
    assert "<b>deployment delivered</b>" in head
    assert "403 (3 times)" in head
    assert "What to do: " in head


def test_page_loads_nothing(passed, tmp_path):
    (tmp_path / "screen.png").write_bytes(png())
    verdict = verdict_of(passed, artifacts=str(tmp_path))
    balance = parsed(html.report(verdict, passed.events))
    assert "script" not in balance.tags
    assert "link" not in balance.tags
    for name, value in balance.attributes:
        assert not name.startswith("on")
        if name in ("src", "href"):
            assert value.startswith(("data:image/png;base64,", "#"))


def test_guest_text_stays_text(story):
    story.up()
    story.console(EVIL, f"[FAILED] Failed to start {EVIL}")
    story.request("metadata", "GET", "/" + EVIL, 404)
    verdict = verdict_of(
        story,
        "CREATE_FAILED",
        image=EVIL,
        reason=EVIL,
        outputs={EVIL: EVIL, "list": [EVIL]},
        problems=[EVIL],
    )
    balance = parsed(html.report(verdict, story.events))
    assert "script" not in balance.tags
    assert "img" not in balance.tags
    assert not [name for name, _ in balance.attributes if name.startswith("on")]


@given(st.lists(st.text(), max_size=5))
def test_any_text_gives_a_complete_picture(texts):
    events = [
        Event("machine", "power-on", "s", {}, at=0.0),
        *(Event("console", "line", "s", {"text": t}, at=float(n)) for n, t in enumerate(texts)),
    ]
    parsed(picture.Picture(timeline.build(events, "s")).svg())


def test_signature_in_path_is_not_shown(story):
    story.up()
    story.request("swift", "PUT", "/v1/A/c/o?temp_url_sig=TOPSECRET", 201)
    assert "TOPSECRET" not in html.report(verdict_of(story, ""), story.events)


def test_screenshot_is_part_of_the_file(story, tmp_path):
    story.power()
    (tmp_path / html.SCREENSHOT).write_bytes(png())
    text = html.report(verdict_of(story, "", artifacts=str(tmp_path)), story.events)
    assert "data:image/png;base64," in text
    (tmp_path / html.SCREENSHOT).write_bytes(b"not a picture")
    text = html.report(verdict_of(story, "", artifacts=str(tmp_path)), story.events)
    assert "data:image/png;base64," not in text


def test_report_is_well_formed_without_events(story):
    parsed(html.report(verdict_of(story, ""), story.events))


def earlier_of(verdict, **changes):
    return EarlierRun(
        Path("/runs/20261127T091500Z-a b.qcow2"),
        json.loads(json.dumps(verdict.to_json())) | changes,
    )


def test_run_is_compared_with_the_earlier_one_stage_by_stage(story, passed):
    verdict = verdict_of(passed)
    stages = [
        {"stage": "booted", "seconds": verdict.times["booted"] - 2.5, "implied": False},
        {"stage": "network up", "seconds": 1.0, "implied": True},
    ]
    earlier = earlier_of(verdict, outcome="failed", stages=stages)
    text = html.report(verdict, passed.events, earlier=earlier)
    balance = parsed(text)
    assert ("href", "../20261127T091500Z-a%20b.qcow2/report.html") in balance.attributes
    assert "of 2026-11-27 09:15 UTC" in text
    assert '<b class="failed">failed</b>' in text
    assert '<b class="passed">passed</b>' in text
    rows = re.findall(r'<td class="stage">(.*?)</td>.*?change">(.*?)</td>', text, re.DOTALL)
    changes = dict(rows[-len(verdict.times) :])
    assert changes.pop("booted") == "+2.5 s"
    assert set(changes.values()) == {"new"}


@pytest.mark.parametrize("stages", [None, [], [None], [{"stage": EVIL, "seconds": "1"}]])
def test_damaged_earlier_verdict_is_compared_by_its_outcome(passed, stages):
    verdict = verdict_of(passed)
    text = html.report(verdict, passed.events, earlier=earlier_of(verdict, stages=stages))
    assert "script" not in parsed(text).tags
    assert '<td class="time change">missing</td>' not in text


def test_matrix_has_row_for_each_image(passed, story):
    runs = [
        html.RunReport(verdict_of(passed, image="good.qcow2"), tuple(passed.events)),
        html.RunReport(verdict_of(passed, "CREATE_FAILED", "bad.qcow2"), tuple(passed.events)),
    ]
    text = html.matrix(runs)
    parsed(text)
    assert "1 of 2 passed" in text
    assert re.findall(r'href="#(run-\d)"', text) == re.findall(r'id="(run-\d)"', text)


def results():
    """The report of a run of pytest: one test that passed on both images, and others."""
    yes, no = html.Cell("passed", 4.25, "gw0/a b/report.html"), html.Cell("failed", 12.5, "f.html")
    return html.results(
        ["web", EVIL],
        {
            "test_motd.py::test_motd": {"web": yes, EVIL: html.Cell("passed", 4.0, "'\">.html")},
            "test_motd.py::test_fails": {"web": no, EVIL: html.Cell("skipped", 0.0, note=EVIL)},
            f"test_motd.py::{EVIL}": {"web": yes},
        },
    )


def test_results_are_a_table_of_tests_by_images():
    text = results()
    balance = parsed(text)
    assert "3 passed, 1 failed, 1 skipped" in text
    assert "<title>failed: 5 tests</title>" in text
    assert "script" not in balance.tags
    assert not [name for name, _ in balance.attributes if name.startswith("on")]
    assert [value for name, value in balance.attributes if name == "href"] == [
        *("gw0/a%20b/report.html", "%27%22%3E.html", "f.html", "gw0/a%20b/report.html"),
    ]


def test_path_that_is_no_utf8_is_linked():
    page = html.results(["a"], {"b": {"a": html.Cell("passed", 1.0, report="\udcff/report.html")}})
    assert 'href="%FF/report.html"' in page


def test_picture_has_both_ends_in_order(passed):
    steps = timeline.build(passed.events, passed.tracker.server)
    sides = [lane.side for lane in steps.lanes]
    assert sides == sorted(sides)
    titles = {lane.title for lane in steps.lanes}
    assert {"machine", "firmware, kernel, init", "hooks", "polls", "signals", "stack"} <= titles
    assert [name for name, _ in steps.flags] == [mark.stage for mark in passed.tracker.marks()]
    assert steps.first <= 0.0 < steps.last


def test_hook_is_a_bar_from_start_to_end():
    def line(text, at):
        return Event("console", "line", "s", {"text": f"heat-config: {text}"}, at=at)

    events = [
        Event("machine", "power-on", "s", {}, at=100.0),
        line('started id=a group=script name="one"', 110.0),
        line('started id=b group=puppet name="two"', 111.0),
        line('finished id=a group=script name="one" status=0', 112.5),
        line('finished id=b group=puppet name="two" status=3', 113.0),
    ]
    (hooks,) = [lane for lane in timeline.build(events, "s").lanes if lane.title == "hooks"]
    assert [(span.start, span.end, span.tone) for span in hooks.spans] == [
        (10.0, 12.5, "good"),
        (11.0, 13.0, "bad"),
    ]


@pytest.mark.parametrize(("first", "last"), [(0, 1), (-1.4, 46), (0, 0.003), (0, 7200), (5, 5)])
def test_ticks_are_round_few_and_inside(first, last):
    ticks = picture.ticks(first, last)
    assert 1 <= len(ticks) <= picture.MAX_TICKS + 2
    assert all(first - 1e-6 <= tick <= last + 1e-6 for tick in ticks)


def test_picture_of_long_run_is_bounded():
    events = [Event("machine", "power-on", "s", {}, at=0.0)]
    for number in range(5_000):
        detail = {"method": "GET", "path": "/v1/", "status": 200, "action": "DescribeStackResource"}
        events.append(Event("cfn", "request", "s", detail, at=float(number)))
    text = picture.Picture(timeline.build(events, "s")).svg()
    assert len(text) < 400_000
    assert text.count("<rect") > 100


MEASURE = """
<script>
const measures = {
  report: (page, frame) => {
    const text = [...page.querySelectorAll("svg text.flag")].map(e => e.getBoundingClientRect());
    const hit = (a, b) =>
      a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    let overlaps = 0;
    text.forEach((a, i) => text.forEach((b, j) => { if (i < j && hit(a, b)) overlaps += 1; }));
    const svg = page.querySelector("svg.timeline").getBoundingClientRect();
    const badge = page.querySelector(".badge");
    return {
      title: page.title,
      wide: page.documentElement.scrollWidth <= frame.clientWidth,
      svg: svg.width > 800 && svg.height > 150,
      flags: text.length,
      overlaps: overlaps,
      inside: text.every(each => each.left >= svg.left - 1 && each.right <= svg.right + 1),
      pictures: [...page.querySelectorAll("img.screen")].map(each => each.naturalWidth),
      badge: frame.contentWindow.getComputedStyle(badge).backgroundColor,
    };
  },
  stages: (page, frame) => {
    const seen = [...page.querySelectorAll("td.evidence")].filter(cell => cell.innerText);
    return {
      wide: page.documentElement.scrollWidth <= frame.clientWidth,
      stages: seen.length,
      narrow: seen.filter(cell => cell.clientWidth < 220).length,
      cut: seen.filter(cell => cell.getBoundingClientRect().right > frame.clientWidth).length,
    };
  },
  results: page => [...page.querySelectorAll(".matrix tr")].map(
    row => [...row.cells].map(cell => cell.className || cell.innerText)),
  script: page => page.title,
};
onload = () => document.body.setAttribute("data-measured", JSON.stringify(
  [...document.querySelectorAll("iframe")].map(
    frame => measures[frame.name](frame.contentDocument, frame))));
</script>
"""
WIDTHS = (360, 500, 700, 820, 1200)


@pytest.mark.tool("chromium")
def test_pages_are_legible_and_run_no_script_in_browser(passed, tmp_path):
    """All pages are frames of one, because each start of a browser takes seconds."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    plain = html.report(verdict_of(passed), passed.events)
    passed.console(EVIL)
    (tmp_path / "screen.png").write_bytes(png())
    report = html.report(verdict_of(passed, artifacts=str(tmp_path)), passed.events)
    script = "<script>document.title='ran'</script>"
    pages = [
        ("report", 1300, report),
        *(("stages", width, plain) for width in WIDTHS),
        ("results", 1300, results()),
        # The page itself forbids scripts, its own as well.
        ("script", 700, plain.replace("</main>", f"</main>{script}")),
        # Without that the script would run.
        ("script", 700, plain.replace("default-src 'none'; ", "").replace("</main>", script)),
    ]
    frames = "".join(
        f'<iframe name="{name}" srcdoc="{escape(page)}" '
        f'style="width:{width}px;height:1000px;border:0"></iframe>'
        for name, width, page in pages
    )
    file = tmp_path / "frames.html"
    file.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{frames}{MEASURE}")
    done = subprocess.run(
        [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
            *("--no-first-run", "--disable-background-networking", "--disable-sync"),
            *("--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--dump-dom", "--window-size=1400,1000", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    # The pages in the frames are attributes, too.
    match = re.search(r'<body data-measured="([^"]*)"', done.stdout)
    assert match, done.stdout[-2000:]
    sizes, *stages, rows, kept, ran = json.loads(unescape(match[1]))
    assert sizes == {
        "title": "passed: a.qcow2",
        "wide": True,
        "svg": True,
        "flags": 9,
        "overlaps": 0,
        "inside": True,
        "pictures": [4],
        "badge": "rgb(26, 127, 75)",
    }
    assert stages == [{"wide": True, "stages": 9, "narrow": 0, "cut": 0}] * len(WIDTHS)
    assert rows == [
        ["test", "web", EVIL],
        ["test_motd.py::test_motd", "yes", "yes"],
        ["test_motd.py::test_fails", "no", "off"],
        [f"test_motd.py::{EVIL}", "yes", "off"],
    ]
    assert (kept, ran) == ("passed: a.qcow2", "ran")


def test_unmet_expectations_have_their_own_section(passed):
    """All stages are reached then, and do not show it."""
    problems = ['the service "chrony": its running is false', EVIL]
    text = html.report(verdict_of(passed, problems=problems), passed.events)
    parsed(text)
    head, _, below = text.partition("<h2>Not as expected</h2>")
    first = (
        "<b>not as expected</b>: the service &#34;chrony&#34;: its running is false (and 1 more)"
    )
    assert first in head
    assert below[: below.index("</section>")].count('<tr class="fault">') == 2
    one = html.report(verdict_of(passed, problems=problems[:1]), passed.events)
    assert "<b>not as expected</b>: the service" in one
    assert "<h2>Not as expected" not in one


def test_report_gives_one_advice(story):
    """The stage's own row has the symptom; its advice may differ from the fault's."""
    story.up()
    story.agent(UnitFileState="disabled", ActiveState="inactive", SubState="dead")
    verdict = verdict_of(story, "CREATE_FAILED")
    text = html.report(verdict, story.events)
    (stage,) = (each for each in verdict.stages if each.stage == verdict.diagnosis.stage)
    assert stage.evidence.startswith("look at the agent in the guest")
    assert stage.evidence not in unescape(text)
    row = text[text.index('<tr class="fault">') :]
    assert "is installed but not enabled" in row[: row.index("</tr>")]


OTHER = "7d0c3a52-5d7e-4d0f-9b7b-0f5a5f0c2f10"


def two_servers(passed):
    """A run with a second server that was switched on later."""
    emit = passed.events.emit
    emit("machine", "power-on", server=OTHER, pid=4712, restored=False)
    emit("console", "line", server=OTHER, text="[    0.000000] Linux version 6.1.0")
    emit("console", "line", server=OTHER, text="Welcome to Debian GNU/Linux 12 (bookworm)!")
    for word, more in (("started", ""), ("finished", " status=7")):
        text = f"heat-config: {word} id=1 group=script name=page{more}"
        emit("console", "line", server=OTHER, text=text)
    (server,) = verdict_of(passed).servers
    return server, replace(server, id=OTHER, name="client")


def test_timeline_of_several_servers_has_band_for_each(passed):
    first, second = two_servers(passed)
    together = timeline.build_together(passed.events, {first.id: "web", OTHER: "client"})
    web, client = together.lanes
    assert (web.title, client.title) == ("web", "client")
    assert web.spans[0].start == 0
    assert client.spans[0].start > web.spans[0].start
    assert {"booted", "network up"} <= {span.label for span in web.spans}
    assert {str(span.tone) for span in client.spans} == {"guest", "bad"}
    for span in (*web.spans, *client.spans):
        assert 0 <= span.start <= span.end <= together.last
    one, two = verdict_of(passed), replace(verdict_of(passed), servers=(first, second))
    assert "from the first power-on" not in html.report(one, passed.events)
    text = html.report(two, passed.events)
    parsed(text)
    assert "from the first power-on" in text


def test_slow_links_and_partitions_are_bars_of_machine():
    def machine(at: float, kind: str, **detail: object) -> Event:
        return Event("machine", kind, "s", detail, at=at)

    events = [
        machine(0, "power-on"),
        machine(1, "link-shape", network="lan", delay=0.2, loss=0.0),
        machine(2, "link-shape", network="lan", delay=0.0, loss=0.5),
        machine(2, "link-part", network="lan", other="db", parted=True),
        machine(3, "link-shape", network="lan", delay=0.0, loss=0.0),
        machine(4, "link-part", network="lan", other="db", parted=False),
        machine(5, "link-part", network="lan", other="db", parted=False),
    ]
    lane = timeline.build(events, "s").lanes[0]
    assert [(each.label, each.start, each.end) for each in lane.spans[1:]] == [
        ("slow or lossy link", 1, 2),
        ("slow or lossy link", 2, 3),
        ("parted from db", 2, 4),
    ]
    assert "delay=0.2" in lane.spans[1].detail
