"""Every hook whose tool is in the image, in one stack, from create to delete.

Excluded: the container hooks, which have tests of their own in booted guests, and Chef, which no
distribution packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hotplate.events import classify
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import GuestDeadline, retry
from tests.booted.run_settings import settings_of_this_run

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
]

TEMPLATE = Path(__file__).parent / "templates" / "all-hooks.yaml"
SECONDS = 600.0

LEAVE_LINES = ("script", "puppet", "salt", "cfn-init", "ansible", "component")
GROUPS = ("script", "hiera", "puppet", "salt", "cfn-init", "ansible", "json-file", "apply-config")
#: The markers of a deployment that succeeds.
STEPS = ("received", "started", "finished", "signalled")
OUTPUTS = ("script", "puppet", "salt", "ansible")


def lines_of(action: str, word: str, groups=LEAVE_LINES) -> list[str]:
    return [f"{group} {action} {word}" for group in groups]


class Witness:
    """Reports which hooks ran since the last call and which signals they sent."""

    def __init__(self, events: EventLog) -> None:
        self.events = events
        self.seen = 0

    def saw(self, *groups: str) -> bool:
        """Return whether the hooks that ran since the last call are of these groups.

        Assert that each exited once with status 0 and was signalled once.
        """
        # Heat may end its action before the last words of the guest's console are read.
        signals = GuestDeadline(60, f"{len(groups)} signals")
        markers = retry(lambda last: self._up_to_signals(0 if last else len(groups)), signals)
        happened = Counter((marker.event, marker.id) for marker in markers)
        started = {marker.id: marker.group for marker in markers if marker.event == "started"}
        for step in STEPS:
            assert {key: happened[step, key] for key in started} == dict.fromkeys(started, 1), step
        assert all(marker.event in STEPS for marker in markers), markers
        assert {marker.status for marker in markers if marker.event == "finished"} <= {0}
        return sorted(started.values()) == sorted(groups)

    def _up_to_signals(self, number: int) -> list[classify.Marker]:
        """Return the new markers, none before there are ``number`` signals."""
        events = list(self.events)[self.seen :]
        markers = [marker for event in events if (marker := classify.marker(event))]
        if [each.event for each in markers].count("signalled") < number:
            return []
        self.seen += len(events)
        return markers


@pytest.mark.both_machines
def test_built_in_case_of_each_group_passes_in_one_boot(all_hooks_trixie, tmp_path):
    command = [sys.executable, "-m", "hotplate", "test", all_hooks_trixie, "--json", "v.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "v.json").read_text())
    listed = verdict["template"].removeprefix("the built-in cases of ").split(", ")
    assert sorted(listed) == sorted(GROUPS)
    assert len(verdict["servers"]) == 1
    word = verdict["outputs"]["word"]
    for group in ("puppet", "hiera", "salt", "ansible"):
        assert verdict["outputs"][group] == f"{group} {word}"


@pytest.mark.defect("K19")
@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_stack_with_every_hook_is_created_updated_and_deleted(release, request, tmp_path):
    image = Image.open(request.getfixturevalue(f"all_hooks_{release}"))
    events = EventLog()
    with Testbed(
        image, settings=settings_of_this_run(), directory=tmp_path / "run", events=events
    ) as testbed:
        witness = Witness(events)

        stack = Stack.create(testbed.cloud, load(TEMPLATE, parameters={"word": "first"}))
        assert stack.wait(seconds=SECONDS).status == "CREATE_COMPLETE", stack
        (server,) = testbed.servers

        def ran() -> list[str]:
            return sorted(server.shell().run("cat /var/lib/all-hooks/ran").check().text.split("\n"))

        def written() -> tuple[str, object]:
            shell = server.shell()
            document = json.loads(shell.run("cat /etc/all-hooks.json").check().text)
            return shell.run("cat /etc/all-hooks-cfn").check().text, document

        expected = lines_of("CREATE", "first")
        assert ran() == sorted(expected)
        assert witness.saw(*GROUPS, "script")
        assert written() == ("first", {"word": "first", "list": [1, None, True]})
        outputs = stack.outputs
        assert {name: outputs[name] for name in OUTPUTS} == {n: f"{n} first" for n in OUTPUTS}
        assert outputs["component"] == "component CREATE first"
        assert outputs["codes"] == [0, 0, 0, 0]

        stack.update(parameters={"word": "second"})
        assert stack.wait(seconds=SECONDS).status == "UPDATE_COMPLETE", stack
        expected += lines_of("UPDATE", "second")
        assert ran() == sorted(expected)
        assert witness.saw(*GROUPS, "ansible")
        assert written() == ("second", {"word": "second", "list": [1, None, True]})
        outputs = stack.outputs
        assert {name: outputs[name] for name in OUTPUTS} == {n: f"{n} second" for n in OUTPUTS}
        assert outputs["component"] == "component UPDATE second"

        assert stack.suspend().wait(seconds=SECONDS).status == "SUSPEND_COMPLETE", stack
        assert witness.saw("script")

        assert stack.resume().wait(seconds=SECONDS).status == "RESUME_COMPLETE", stack
        assert witness.saw("script")
        expected += ["component SUSPEND second", "component RESUME second"]
        assert ran() == sorted(expected)

        assert stack.delete().wait(seconds=SECONDS).status == "DELETE_COMPLETE", stack
        # Its own marker may be cut off: Heat deletes the server once it has the signal.
        lines = [line for line in server.machine.console.lines if "all-hooks: component" in line]
        steps = [line.partition("all-hooks: ")[2] for line in lines]
        assert steps == [
            "component CREATE first",
            "component SUSPEND second",
            "component RESUME second",
            "component DELETE second",
        ]
        assert testbed.servers == []
