"""Progress of a build, read from its output."""

from __future__ import annotations

from hotplate.image.progress import BuildProgress

LINES = """\
2026-01-01 00:00:00.000 | Building elements:  debian-minimal
2026-01-01 00:00:00.000 | Expanded element dependencies to: a b c
2026-01-01 00:00:00.000 | Running hooks from /tmp/x/hooks/root.d
2026-01-01 00:00:00.000 | dib-run-parts Running /tmp/x/hooks/root.d/08-debootstrap
2026-01-01 00:00:00.000 | dib-run-parts 08-debootstrap completed
2026-01-01 00:00:00.000 | Running hooks from /tmp/x/hooks/extra-data.d
2026-01-01 00:00:00.000 | dib-run-parts Running /tmp/in_target.d/pre-install.d/10-x
2026-01-01 00:00:00.000 | dib-run-parts Running /tmp/in_target.d/install.d/50-y
2026-01-01 00:00:00.000 | dib-run-parts 50-y completed
2026-01-01 00:00:00.000 | dib-run-parts Running /tmp/in_target.d/install.d/60-z
"""


def test_steps_elements_and_the_running_script_are_read():
    seen = []
    progress = BuildProgress(on_step=lambda name, seconds: seen.append(name))
    for line in LINES.splitlines(keepends=True):
        progress.feed(line)
        assert "completed" not in line or progress.script == ""
    assert seen == ["base system", "gather files", "prepare", "install"]
    assert progress.step == "install"
    assert progress.script == "install.d/60-z"
    assert progress.elements == ("a", "b", "c")
    assert list(progress.durations()) == seen


def test_lines_without_a_time_are_read():
    progress = BuildProgress()
    progress.feed("dib-run-parts Running /h/install.d/50-y\n")
    assert (progress.step, progress.script) == ("install", "install.d/50-y")


def test_output_of_a_package_is_not_a_step():
    progress = BuildProgress()
    for line in ("> Running hooks in /etc/ca-certificates/update.d...", "> Building elements"):
        progress.feed(line)
    assert progress.steps == []
