"""Requests too large for a real Nova fail with its message, before any machine is started."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import tiny_disk
import yaml
from hotplate_command import hotplate

pytestmark = pytest.mark.tool("qemu-img")


def template_with(path: Path, user_data: str) -> Path:
    server = {
        "type": "OS::Nova::Server",
        "properties": {
            "image": "any",
            "flavor": "any",
            "user_data_format": "RAW",
            "user_data": user_data,
        },
    }
    path.write_text(
        yaml.safe_dump({"heat_template_version": "2018-08-31", "resources": {"server": server}})
    )
    return path


@pytest.fixture
def verdict(tmp_path):
    """Run ``hotplate test`` on a stack with so much user data; return its verdict and output."""

    def run(size: int, *words: str) -> tuple[dict[str, object], str]:
        done = hotplate(
            *("test", tiny_disk.make(tmp_path / "disk.raw")),
            *("-t", template_with(tmp_path / "t.yaml", "x" * size)),
            *("--artifacts", tmp_path / "artifacts", "--json", tmp_path / "verdict.json"),
            *words,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        timeline = json.loads((tmp_path / "artifacts" / "last" / "timeline.json").read_text())
        assert not [event for event in timeline if event["source"] == "machine"]
        assert not (tmp_path / "artifacts" / "last" / "servers").exists()
        return json.loads((tmp_path / "verdict.json").read_text()), done.stdout

    return run


def test_too_large_user_data_fails(verdict):
    size = 49150
    stack, text = verdict(size)
    assert stack["status"] == "CREATE_FAILED"
    encoded = len(base64.b64encode(b"x" * size))
    assert encoded > 65535
    assert (
        "User data too large. User data must be no larger than 65535 bytes once base64 encoded."
    ) in text
    assert f"{encoded} bytes" in text


def test_too_large_request_fails(verdict):
    stack, text = verdict(30000, "--request-limit", "32768")
    assert stack["status"] == "CREATE_FAILED"
    assert "Over limit" in text
    assert "32768 bytes (osapi_max_request_body_size)" in text
    assert "(HTTP 413)" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--request-limit", "0"], "--request-limit 0 is too small"),
        (["--environment-dir", "/nonexistent"], 'environment directory "/nonexistent" does not'),
        (["--network-data", "/nonexistent"], 'file "/nonexistent" cannot be read: No such file'),
        (["--network-data", "/dev/null"], '"/dev/null" is no network data: Expecting value'),
    ],
)
def test_impossible_options_are_refused(tmp_path, words, sentence):
    done = hotplate("test", tiny_disk.make(tmp_path / "d.raw"), *words)
    assert done.returncode == 2
    assert sentence in done.stderr
