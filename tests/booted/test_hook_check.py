"""``hotplate hook check --image``: check an image's hooks in a restored guest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.boots

SECONDS = 1500


def check(*words):
    """Run the command; return its exit status, and its lines by name or its message."""
    done = subprocess.run(
        [sys.executable, "-m", "hotplate", "hook", "check", *map(str, words), "--json"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    print(done.stderr)
    if not done.stdout:
        return done.returncode, done.stderr
    return done.returncode, {each["name"]: each for each in json.loads(done.stdout)["lines"]}


def test_own_hook_passes(all_hooks_trixie):
    status, lines = check("script", "--image", all_hooks_trixie)
    assert {name: each["faults"] for name, each in lines.items() if each["faults"]} == {}
    states = {name: each["state"] for name, each in lines.items()}
    assert (status, states.pop("missing-tool"), set(states.values())) == (
        0,
        "not tried",
        {"passed"},
    )


def test_non_hook_fails_and_missing_hook_is_named(all_hooks_trixie, tmp_path):
    """Any other program of the image serves as a bad hook."""
    config = tmp_path / "ok"
    config.write_text("@word@\n")
    given = ["--image", all_hooks_trixie, "--config", f"ok={config}"]
    status, lines = check("/bin/cat", *given)
    assert (status, lines["answer"]["state"]) == (1, "failed")
    assert "no deploy_status_code" in lines["answer"]["faults"][0]["reason"]
    status, errors = check("no-such-group", *given)
    assert status == 2
    assert 'the image has no hook for the group "no-such-group"; it has ' in errors
