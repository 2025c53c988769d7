"""The picture of the loop: from a template to an accepted signal.

``generated.py`` writes it as ``loop.svg``.  It has its own background, and other colours when
the reader prefers a dark scheme, so that it is readable on any page.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from hotplate.verdict.stages import Stage

WIDTH, TOP, STEP = 1024, 112, 46
#: The x position of the stage names.
STAGES_AT = 832


@dataclass(frozen=True)
class Column:
    """A sender and receiver; *at* is the middle."""

    name: str
    below: str
    at: int


COLUMNS = {
    "you": Column("hotplate", "test, up, pytest", 84),
    "heat": Column("Heat", "the real engine", 244),
    "nova": Column("Nova", "metadata", 404),
    "agent": Column("agent", "and its runner", 574),
    "hook": Column("hook", "of the group", 734),
}


@dataclass(frozen=True)
class Arrow:
    """One message, and the stages that it proves."""

    start: str
    end: str
    text: str
    stages: tuple[Stage, ...] = ()


ARROWS = (
    Arrow("you", "heat", "template"),
    Arrow("heat", "nova", "server, user data"),
    Arrow("nova", "agent", "boots the image", (Stage.BOOTED,)),
    Arrow("agent", "nova", "where is Heat?", (Stage.NETWORK_UP, Stage.METADATA_SERVED)),
    Arrow("agent", "heat", "polls, signed, again and again", (Stage.AGENT_POLLED,)),
    Arrow("heat", "agent", "deployment: config, inputs", (Stage.DEPLOYMENT_DELIVERED,)),
    Arrow("agent", "hook", "as JSON on stdin", (Stage.HOOK_STARTED,)),
    Arrow("hook", "agent", "outputs, status", (Stage.HOOK_FINISHED,)),
    Arrow("agent", "heat", "signal, until it is accepted", (Stage.SIGNAL_RECEIVED,)),
    Arrow("heat", "you", "COMPLETE", (Stage.SIGNAL_ACCEPTED,)),
)

STYLE = """\
  .page { fill: #ffffff; stroke: #c8ccd2 }
  .room { fill: #f3f5f8; stroke: #c8ccd2 }
  .box { fill: #ffffff; stroke: #4a5568 }
  .life { stroke: #a8b0bc; stroke-dasharray: 3 5 }
  .arrow { stroke: #2b5fb3; stroke-width: 1.8; fill: none }
  .head { fill: #2b5fb3 }
  .band { stroke: #c8ccd2 }
  text { font-family: sans-serif; fill: #1f2733; font-size: 14px }
  .small { font-size: 12px; fill: #5a6575 }
  .name { font-weight: bold }
  .stage { fill: #1d7a46; font-weight: bold; font-size: 13px }
  .halo { stroke: #f3f5f8; stroke-width: 5; paint-order: stroke }
  @media (prefers-color-scheme: dark) {
    .page { fill: #171b21; stroke: #3a424d }
    .room { fill: #1f252d; stroke: #3a424d }
    .box { fill: #171b21; stroke: #8a95a5 }
    .life { stroke: #56606d }
    .arrow { stroke: #7fb0ff }
    .head { fill: #7fb0ff }
    .band { stroke: #3a424d }
    text { fill: #e6eaf0 }
    .small { fill: #a5afbd }
    .stage { fill: #6fd39b }
    .halo { stroke: #1f252d }
  }
"""
ALT = (
    "hotplate gives a template to the real Heat; Nova boots the image under QEMU; the agent in the "
    "guest asks for its metadata, polls Heat, and gets a deployment; the hook runs; the signal "
    "goes back until Heat accepts it"
)


def svg() -> str:
    """Return the picture."""
    height = TOP + STEP * len(ARROWS) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(ALT)}">',
        f"<title>{escape(ALT)}</title>",
        f"<style>\n{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *_room("this host, one process", 12, 484, height),
        *_room("the guest, under QEMU", 496, 812, height),
        *(line for column in COLUMNS.values() for line in _column(column, height)),
        f'<text class="small" x="{STAGES_AT}" y="58">the stages</text>',
        f'<text class="small" x="{STAGES_AT}" y="74">of the verdict</text>',
    ]
    for number, arrow in enumerate(ARROWS):
        parts += _arrow(arrow, number + 1, TOP + STEP * number + 26)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _room(name: str, left: int, right: int, height: int) -> list[str]:
    """Return a box behind columns that belong together."""
    return [
        f'<rect class="room" x="{left}" y="10" width="{right - left}" height="{height - 22}" '
        'rx="6"/>',
        f'<text class="small" x="{left + 12}" y="30">{escape(name)}</text>',
    ]


def _column(column: Column, height: int) -> list[str]:
    left = column.at - 62
    return [
        f'<line class="life" x1="{column.at}" y1="86" x2="{column.at}" y2="{height - 20}"/>',
        f'<rect class="box" x="{left}" y="40" width="124" height="46" rx="5"/>',
        f'<text class="name" x="{column.at}" y="59" text-anchor="middle">{column.name}</text>',
        f'<text class="small" x="{column.at}" y="77" text-anchor="middle">{column.below}</text>',
    ]


def _arrow(arrow: Arrow, number: int, y: int) -> list[str]:
    start, end = COLUMNS[arrow.start].at, COLUMNS[arrow.end].at
    way = 1 if end > start else -1
    tip, tail = end - 3 * way, end - 12 * way
    stages = ", ".join(stage.value for stage in arrow.stages)
    return [
        f'<line class="arrow" x1="{start}" y1="{y}" x2="{tail}" y2="{y}"/>',
        f'<polygon class="head" points="{tip},{y} {tail},{y - 5} {tail},{y + 5}"/>',
        f'<text class="halo" x="{(start + end) / 2:.0f}" y="{y - 8}" text-anchor="middle">'
        f"{number}. {escape(arrow.text)}</text>",
        *_stage_names(stages, y),
    ]


def _stage_names(stages: str, y: int) -> list[str]:
    names = stages.split(", ") if stages else []
    first = y + 4 - 8 * (len(names) - 1)
    return [
        f'<text class="stage" x="{STAGES_AT}" y="{first + 16 * row}">{name}</text>'
        for row, name in enumerate(names)
    ]
