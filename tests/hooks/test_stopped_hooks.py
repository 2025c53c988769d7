"""A hook that is stopped for taking too long leaves no input on the disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import program

#: By the file of the hook: the prefix of its settings, that of its tool, and its options.
TOOLS = {
    "puppet": ("HEAT_PUPPET", "CMD", {"enable_hiera": True}),
    "salt": ("HEAT_SALT", "CMD", {}),
    "ansible": ("HEAT_ANSIBLE", "CMD", {}),
    "docker_cmd": ("HEAT_DOCKER", "CMD", {}),
}

CONFIGS = {"docker_cmd": {"a": {"image": "i", "environment": ["pw=planted", "k=planted\nx"]}}}


@pytest.mark.defect("H10")
@pytest.mark.parametrize("name", TOOLS)
def test_inputs_are_gone_when_the_runner_stops_a_hook(
    name, make_deployment, hooks_dir: Path, tmp_path: Path
):
    """The runner sends SIGTERM to the hook's process group."""
    prefix, command, options = TOOLS[name]
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    # Queries for versions and settings get no answer; an actual run never ends.
    text = f"case $1 in ps | config) exit ;; esac\necho up > {ready}\nexec sleep 600"
    tool = program(tmp_path / "tool", text)
    deployment = make_deployment(
        CONFIGS.get(name, "text"), group=name, options=options, inputs={"pw": "planted"}
    )
    (tmp_path / "given").write_text(json.dumps(deployment))
    with (
        (tmp_path / "given").open("rb") as given,
        subprocess.Popen(
            [sys.executable, "-I", str(hooks_dir / f"{name}.py")],
            stdin=given,
            start_new_session=True,
            env={
                "PATH": os.environ["PATH"],
                "HEAT_CONFIG_LIB": str(hooks_dir),
                f"{prefix}_{command}": str(tool),
                f"{prefix}_WORKING": str(tmp_path / "work"),
                f"{prefix}_OUTPUTS": str(tmp_path / "outputs"),
                "HEAT_PUPPET_HIERA_DATADIR": str(tmp_path / "hieradata"),
                "HEAT_HIERA_CONFIG": str(tmp_path / "hiera.yaml"),
            },
        ) as hook,
    ):
        assert ready.read_text() == "up\n"
        (tmp_path / "given").unlink()
        os.killpg(hook.pid, signal.SIGTERM)
        hook.wait(60)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in left if b"planted" in path.read_bytes()] == []
