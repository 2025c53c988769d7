"""End to end: an image built here boots, and a real Heat creates the stack."""

from __future__ import annotations

import hashlib
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.boots

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
#: In a chroot the kernel refuses to make user namespaces (user_namespaces(7), EPERM).
CHROOT = 'mount --rbind / "$0"; exec chroot "$0" "$@"'
#: Those that lines of the console show.
BY_CONSOLE = ["booted", "hook started", "hook finished"]


@pytest.fixture
def sample(seeds):
    return seeds / "one-template-sample"


def test_unmodified_sample_template_passes_in_parallel_runs(
    all_hooks_bookworm, without_cloud_init, sample, test_image, nothing_left
):
    """A whole disk with bookworm and a partition with trixie, in independent runs."""
    images = {"disk": all_hooks_bookworm, "partition": without_cloud_init}
    before = {name: _hash(image) for name, image in images.items()}
    with ThreadPoolExecutor() as pool:
        runs = {
            name: pool.submit(test_image, image, "-t", sample / "template.yaml", name=name)
            for name, image in images.items()
        }
    for name, run in runs.items():
        done = run.result()
        passes(done)
        assert name in done.verdict["image"]
        assert _hash(images[name]) == before[name]


@pytest.mark.qemu
@pytest.mark.long
def test_sample_template_passes_on_a_host_without_networks(
    all_hooks_bookworm, sample, test_image, tmp_path, nothing_left
):
    """In a chroot, as in many CI systems, no network between servers can be made.

    cloud-init fails on a network_data.json, here that of a config drive, with a MAC address that
    the machine does not have.
    """
    root = tmp_path / "root"
    root.mkdir()
    chroot = ("unshare", "--mount", "--propagation", "private", "sh", "-euc", CHROOT, root)
    words = ("-t", sample / "template.yaml", "--datasource", "config-drive-vfat")
    done = test_image(all_hooks_bookworm, *words, runner=chroot)
    passes(done, unordered=["metadata served"])
    assert re.search(r"Datasource DataSourceConfigDrive .*\[source=/dev/vdb1\]", done.console)
    assert "no networks between servers" in done.verdict["facts"]["network"]


def passes(done, *, unordered=()):
    """Check the verdict and the artifacts of a good image.

    :param unordered: stages that neither requests nor BY_CONSOLE show.
    """
    assert done.status == 0, done.stdout
    verdict = done.verdict
    assert verdict["status"] == "CREATE_COMPLETE"
    assert verdict["outputs"] == {
        "stdout": "web server ready\n",
        "stderr": "nothing was served yet\n",
        "status_code": 0,
    }
    assert [stage["stage"] for stage in verdict["stages"]] == STAGES
    seconds = {stage["stage"]: stage["seconds"] for stage in verdict["stages"]}
    # A line of the console may be read only after an answer to the guest's next request.
    by_requests = [stage for stage in STAGES if stage not in (*BY_CONSOLE, *unordered)]
    for stages in (BY_CONSOLE, by_requests):
        times = [seconds[stage] for stage in stages]
        assert times == sorted(times)
    for file in ("timeline.json", "requests.jsonl", "report.html", "template.yaml"):
        assert (done.folder / file).stat().st_size > 0, file


def _hash(path):
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def test_failing_script_fails_the_stack_with_its_output(
    without_cloud_init, sample, test_image, tmp_path
):
    shutil.copytree(sample, tmp_path / "sample")
    script = tmp_path / "sample" / "scripts" / "web.sh"
    script.write_text("#!/bin/sh\necho started\necho 'the web is not there' >&2\nexit 3\n")
    done = test_image(
        without_cloud_init, "-t", tmp_path / "sample" / "template.yaml", "--pause-on-fail"
    )
    assert done.status == 1
    # stdin is not a terminal, so nothing waits for Enter.
    for line in ("ssh -F ", "hotplate shell --directory "):
        assert f"    {line}" in done.stdout
    # QEMU alone has a monitor; tests/cli/test_pause.py has one.
    assert "hotplate monitor" not in done.stdout
    assert not list(done.folder.rglob("doors/control"))
    assert done.verdict["status"] == "CREATE_FAILED"
    assert "deploy_status_code" in done.stdout
    assert done.verdict["outputs"]["status_code"] == 3
    assert done.verdict["outputs"]["stderr"] == "the web is not there\n"
    assert done.verdict["outputs"]["stdout"] == "started\n"
