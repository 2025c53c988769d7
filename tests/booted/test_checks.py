"""The user's own checks in a booted guest: executables, goss, reboots, known failures."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hotplate.image import mirrors

pytestmark = pytest.mark.boots

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "checks"
CHECKS = {
    "fails.sh": "echo no luck >&2; exit 3",
    "floods.sh": "echo first; head -c 1000000000 /dev/zero | tr '\\0' x; echo last; exit 1",
    "net/passes.sh": '. "$KOLA_EXT_DATA/lib.sh"\ngreet; id -u',
    "net/data/lib.sh": "greet() { echo hello; }",
    "other-arch.sh": "## kola:\n##   architectures: s390x\nexit 1",
    "reboots.sh": """\
cat /proc/sys/kernel/random/boot_id
case "${AUTOPKGTEST_REBOOT_MARK:-}" in
  "") /tmp/autopkgtest-reboot one ;;
  one) systemctl is-system-running --wait; echo in one ;;
esac""",
}
GOSS = """\
file:
  /etc/passwd: {exists: true}
  /no/such/file: {exists: true}
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, text in CHECKS.items():
        file = tmp_path / "checks" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o644 if "data" in name else 0o755)
    (tmp_path / "goss.yaml").write_text(GOSS)
    return tmp_path


@pytest.fixture(scope="session")
def goss_program(tmp_path_factory) -> Path:
    """The real goss: the host's, else the one of Debian trixie (0.4.9), which bookworm has not."""
    program = os.environ.get("GOSS_PATH") or shutil.which("goss")
    if program:
        return Path(program)
    if shutil.which("mmdebstrap") is None:
        pytest.skip("there is no goss on this host, and no mmdebstrap to fetch it with")
    root = tmp_path_factory.mktemp("goss") / "root"
    places = mirrors.of_this_host("trixie")
    options = [f"--aptopt={option}" for option in places.options]
    # Unpacks goss alone, without what it depends on.
    words = ["mmdebstrap", "--quiet", "--variant=extract", "--include=goss", *options]
    words += ["trixie", str(root), *([places.main] if places.main else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"no goss on this host, and none to be had: {done.stderr.strip()[-300:]}")
    return root / "usr/bin/goss"


def by_name(done) -> dict[str, dict[str, object]]:
    return {each["name"]: each for each in done.verdict["checks"]}


def test_each_check_has_its_result_in_every_report(without_cloud_init, test_image, folder):
    year = datetime.date.today().year + 1
    (folder / "known.yaml").write_text(
        f"- {{pattern: floods.sh, tracker: 'https://example.org/1', snooze: {year}-01-01}}\n"
        "- {pattern: fails.sh, tracker: 'https://example.org/2', snooze: 2020-01-01}\n"
        f"- {{pattern: 'net/*', tracker: 'https://example.org/3', snooze: {year}-01-01}}\n"
    )
    words = ("--check", folder / "checks", "--known-failures", folder / "known.yaml")
    junit = folder / "junit.xml"
    done = test_image(without_cloud_init, *words, "--junit", junit)
    assert done.status == 1, done.stdout
    assert done.last_line.startswith('FAILED: the check "fails.sh" failed: it ended with status 3')
    checks = by_name(done)
    status = {name: each["status"] for name, each in checks.items()}
    assert status == {
        "fails.sh": "failed",
        "floods.sh": "known failure",
        "net/passes.sh": "passed",
        "other-arch.sh": "skipped",
        "reboots.sh": "passed",
    }
    assert checks["fails.sh"]["reason"] == (
        "it ended with status 3; known until 2020-01-01, which has passed: https://example.org/2"
    )
    assert "https://example.org/1" in checks["floods.sh"]["reason"]
    assert "it is listed as known to fail" in checks["net/passes.sh"]["reason"]
    # The outputs are in the folder of the run, for its user only, and not in the printed text.
    outputs = {name: done.folder / str(each["output"]) for name, each in checks.items()}
    assert outputs["net/passes.sh"].read_text().endswith("\n\nhello\n0\n")
    assert "no luck" in outputs["fails.sh"].read_text()
    assert outputs["fails.sh"].stat().st_mode & 0o777 == 0o600
    flood = outputs["floods.sh"].read_text()
    assert len(flood) < 100_000
    assert flood.endswith("last\n")
    boots = [
        line for line in outputs["reboots.sh"].read_text().splitlines() if line.count("-") == 4
    ]
    assert len({*boots}) == len(boots) == 2
    assert "no luck" not in done.stdout + json.dumps(done.verdict)
    assert 'check "fails.sh" failed' in done.stdout
    # For readers of JUnit, each is a case.
    cases = {each.get("name"): each for each in ElementTree.parse(junit).iter("testcase")}
    message = cases["check fails.sh"].find("failure").get("message")
    assert message.startswith("it ended with status 3")
    assert cases["check fails.sh"].findtext("system-out") == "no luck"
    assert cases["check floods.sh"].find("skipped").get("type") == "known failure"
    assert cases["check net/passes.sh"].find("failure") is None
    assert cases["stack"].find("failure") is None
    report = (done.folder / "report.html").read_text()
    assert "no luck" in report
    assert "known failure" in report


def test_documented_checks_pass(without_cloud_init, test_image, goss_program):
    words = ["--check", EXAMPLES / "smoke", "--goss", EXAMPLES / "goss.yaml"]
    words += ["--known-failures", EXAMPLES / "known-failures.yaml"]
    done = test_image(without_cloud_init, *words, "--goss-program", goss_program)
    assert done.status == 0, done.stdout
    status = {name: each["status"] for name, each in by_name(done).items()}
    assert status.pop("swap.sh") == "known failure"
    assert {*status.values()} == {"passed"}
    assert {"units.sh", "reboot.sh", "goss: User: root: uid"} <= {*status}


@pytest.mark.long
def test_hanging_check_fails_the_run_within_its_limit(without_cloud_init, test_image, tmp_path):
    hangs = tmp_path / "hangs.sh"
    hangs.write_text('#!/bin/sh\n# kola: {"timeoutMin": 1}\necho begin\nsleep 12345\n')
    hangs.chmod(0o755)
    done = test_image(without_cloud_init, "--check", hangs)
    assert done.status == 1, done.stdout
    assert by_name(done)["hangs.sh"]["reason"].startswith("it did not end within ")
    assert 'the check "hangs.sh" failed: it did not end within' in done.last_line


def test_each_test_of_a_goss_file_is_a_check(without_cloud_init, test_image, folder, goss_program):
    words = ("--goss", folder / "goss.yaml", "--goss-program", goss_program)
    done = test_image(without_cloud_init, *words)
    assert done.status == 1, done.stdout
    checks = by_name(done)
    assert checks["goss: File: /etc/passwd: exists"]["status"] == "passed"
    missing = checks["goss: File: /no/such/file: exists"]
    assert (missing["status"], missing["reason"]) == ("failed", "Expected false to equal true")
    assert 'the check "goss: File: /no/such/file: exists" failed' in done.last_line


def test_typing_error_in_a_goss_file_is_wrong_usage(
    without_cloud_init, test_image, folder, goss_program
):
    (folder / "goss.yaml").write_text("file:\n  /etc/passwd: {exist: true}\n")
    words = ("--goss", folder / "goss.yaml", "--goss-program", goss_program)
    done = test_image(without_cloud_init, *words)
    assert done.status == 2, done.stdout
    assert f'goss refuses the file "{folder / "goss.yaml"}": ' in done.stderr
    assert "invalid Attribute for File:/etc/passwd: exist" in done.stderr
