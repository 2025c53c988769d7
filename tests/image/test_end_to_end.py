"""The whole path: an image that was built here boots, and a real Heat says what it says."""

from __future__ import annotations

import hashlib
import shutil

import pytest

pytestmark = [pytest.mark.boots, pytest.mark.builds, pytest.mark.root, pytest.mark.network]

STAGES = [
    "booted",
    "network up",
    "metadata served",
    "agent polled",
    "deployment delivered",
    "hook started",
    "hook finished",
    "signal received",
    "signal accepted",
]


@pytest.fixture
def sample(seeds):
    return seeds / "one-template-sample"


@pytest.fixture(params=["bookworm", "trixie"])
def image(request):
    """A whole disk with bookworm, a partition with kernel and initrd beside it with trixie."""
    return request.getfixturevalue(request.param)


def test_the_sample_template_unmodified(image, sample, test_image, nothing_left):
    before = hashlib.sha256(image.read_bytes()).hexdigest()
    done = test_image(image, "-t", sample / "template.yaml")
    assert done.status == 0, done.stdout
    verdict = done.verdict
    assert verdict["status"] == "CREATE_COMPLETE"
    assert verdict["outputs"] == {
        "stdout": "web server ready\n",
        "stderr": "nothing was served yet\n",
        "status_code": 0,
    }
    assert [stage["stage"] for stage in verdict["stages"]] == STAGES
    times = [stage["seconds"] for stage in verdict["stages"]]
    assert times == sorted(times)
    for name in ("timeline.json", "requests.jsonl", "report.html", "template.yaml"):
        assert (done.folder / name).stat().st_size > 0, name
    assert hashlib.sha256(image.read_bytes()).hexdigest() == before


def test_a_script_that_fails_is_a_failed_stack_with_its_words(image, sample, test_image, tmp_path):
    shutil.copytree(sample, tmp_path / "sample")
    script = tmp_path / "sample" / "scripts" / "web.sh"
    script.write_text("#!/bin/sh\necho started\necho 'the web is not there' >&2\nexit 3\n")
    done = test_image(image, "-t", tmp_path / "sample" / "template.yaml")
    assert done.status == 1
    assert done.verdict["status"] == "CREATE_FAILED"
    assert "deploy_status_code" in done.stdout
    assert done.verdict["outputs"]["status_code"] == 3
    assert done.verdict["outputs"]["stderr"] == "the web is not there\n"
    assert done.verdict["outputs"]["stdout"] == "started\n"


def test_the_builtin_template_and_junit(bookworm, test_image, tmp_path):
    done = test_image(bookworm, "--junit", tmp_path / "result.xml")
    assert done.status == 0, done.stdout
    assert 'failures="0"' in (tmp_path / "result.xml").read_text()
    assert "PASSED" in done.stdout
