"""Run each of the project's seed templates, unmodified, in a guest."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.boots

RUN_SECONDS = 1500
SEEDS = Path(__file__).parents[1] / "seeds"


def requests(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def test_seed_wait_condition_is_signalled(all_hooks_trixie, test_image, nothing_left):
    """seeds/002: cfn-signal in the user data of an AWS::EC2::Instance."""
    done = test_image(
        all_hooks_trixie, "-t", SEEDS / "wait-condition" / "waitcondition_test.template"
    )
    assert done.status == 0, done.stdout
    assert done.verdict["status"] == "CREATE_COMPLETE"
    # Nova refuses it to an ordinary user.
    assert 'availability zone with a host "nova:n0819a69aa40a"' in done.stdout
    signals = [
        each["detail"]["status"]
        for each in requests(done.folder)
        if each["source"] == "cfn" and "/waitcondition/" in each["detail"]["path"]
    ]
    assert signals == [200]
    events = json.loads((done.folder / "timeline.json").read_text())
    created = [
        each["detail"]["resource"]
        for each in events
        if each["source"] == "stack"
        and (each["detail"]["action"], each["detail"]["status"]) == ("CREATE", "COMPLETE")
    ]
    # The order in which the seed lists its events.
    assert created[:3] == ["MyWaitHandle", "MyServer", "MyWaitCondition"]


@pytest.fixture
def etc_heat(tmp_path):
    """Return a function that runs hotplate with a private ``/etc/heat`` of the seed's files."""
    heat = tmp_path / "etc" / "heat"
    (heat / "templates").mkdir(parents=True)
    shutil.copy(SEEDS / "nested-server" / "nested.yaml", heat / "templates")
    shutil.copytree(SEEDS / "nested-server" / "environment.d", heat / "environment.d")

    def run(*words: object) -> tuple[subprocess.CompletedProcess[str], Path]:
        base = tmp_path / "artifacts"
        done = subprocess.run(
            [
                *("unshare", "--mount", "--propagation", "private", "sh", "-euc"),
                'mount -t overlay overlay -o "lowerdir=$1:/etc" /etc; shift; exec "$@"',
                *("sh", tmp_path / "etc", sys.executable, "-m", "hotplate", "test"),
                *map(str, words),
                *("--artifacts", base, "--json", tmp_path / "verdict.json"),
            ],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done, base / "last"

    return run


@pytest.mark.parametrize(
    ("template", "words"),
    [
        # Its type is in /etc/heat/environment.d/default.yaml.
        ("server-2.yaml", ("--environment-dir", "/etc/heat/environment.d")),
        ("server.yaml", ("-e", SEEDS / "nested-server" / "env.yaml")),
    ],
    ids=["global environment", "user environment"],
)
def test_nested_server_is_created(without_cloud_init, etc_heat, nothing_left, template, words):
    """seeds/003."""
    path = SEEDS / "nested-server" / template
    done, folder = etc_heat(without_cloud_init, "-t", path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    events = json.loads((folder / "timeline.json").read_text())
    assert [each["kind"] for each in events].count("power-on") == 1
    completed = {
        (each["detail"]["type"], each["detail"]["resource"])
        for each in events
        if each["source"] == "stack" and each["detail"]["status"] == "COMPLETE"
    }
    for wanted in (
        ("OS::Heat::ResourceGroup", "server"),
        ("OS::Nova::Server", "server"),
        ("OS::Heat::SoftwareDeployment", "deployment"),
    ):
        assert wanted in completed
    assert any(
        each["source"] == "cfn" and "/signal/" in each["detail"]["path"]
        for each in requests(folder)
    )


def test_seed_puppet_deployment_passes(all_hooks_trixie, test_image, nothing_left):
    """seeds/004: the config and the deployment of the quoted letter."""
    done = test_image(all_hooks_trixie, "-t", SEEDS / "puppet-deployment" / "template.yaml")
    assert done.status == 0, done.stdout
    assert done.verdict["outputs"] == {
        "result": "the file holds fooooo and baaaaa",
        "status_code": 0,
    }
