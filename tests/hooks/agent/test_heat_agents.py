"""heat-agents' own phases, template and hook, unchanged, under upstream's agent and under ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import completed, program

pytestmark = pytest.mark.network

ROOT = Path(__file__).resolve().parents[3]
PARTS = ROOT / "elements/os-refresh-config/os-refresh-config-files/dib-run-parts"
PROGRAMS = ("os-collect-config", "os-apply-config", "os-refresh-config")
DEPLOYMENT = {
    "id": "d-1",
    "name": "greet",
    "group": "script",
    "config": "#!/bin/sh\necho hello $name\nprintf %s done >$heat_outputs_path.state\n",
    "inputs": [{"name": "name", "value": "wörld", "type": "String"}],
    "outputs": [{"name": "state"}],
    "options": {},
}


class Server:
    """A directory with heat-agents' files at their paths in an image."""

    def __init__(self, root: Path, heat_agents: Path, programs: Path) -> None:
        self.root = root
        self.rendered = root / "heat-config"
        elements = heat_agents / "heat-config"
        for name in ("bin", "hooks", "local", "cache", "phases/configure.d"):
            (root / name).mkdir(parents=True, mode=0o700)
        for name in PROGRAMS:
            (root / "bin" / name).symlink_to(programs / name)
        shutil.copy2(PARTS, root / "bin")
        program(root / "bin/heat-config-notify", f"cat >{root}/signal.$(basename $1)")
        for name in ("20-os-apply-config", "55-heat-config"):
            script = elements / "os-refresh-config/configure.d" / name
            shutil.copy2(script, root / "phases/configure.d")
        # A template's path is that of the file that it makes.
        template = root / "templates" / str(self.rendered).lstrip("/")
        template.parent.mkdir(parents=True)
        shutil.copy2(
            heat_agents / "heat-config/os-apply-config/var/run/heat-config/heat-config", template
        )
        shutil.copy2(
            heat_agents / "heat-config-script/install.d/hook-script.py", root / "hooks/script"
        )
        (root / "hooks/script").chmod(0o755)
        self.conf = root / "os-collect-config.conf"
        self.conf.write_text(
            f"[DEFAULT]\ncommand = os-refresh-config --lockfile {root}/lock\ncollectors = local\n"
            f"cachedir = {root}/cache\nbackup_cachedir = {root}/backup\n"
            f"[local]\npath = {root}/local\n"
        )

    def round(self, *deployments: object) -> subprocess.CompletedProcess[str]:
        """Give the server deployments, and run the agent once."""
        document = self.root / "local/data.json"
        document.write_text(json.dumps({"deployments": deployments}))
        document.chmod(0o600)
        root = str(self.root)
        return completed(
            ["os-collect-config", "--config-file", str(self.conf), "--one-time"],
            env={
                # Their runner imports yaml, which the Python of the tests has.
                "PATH": f"{root}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "LC_ALL": "C",
                "HOME": root,
                "HEAT_CONFIG_LIB": str(ROOT / "hooks"),
                "OS_REFRESH_CONFIG_BASE_DIR": f"{root}/phases",
                "OS_CONFIG_APPLIER_TEMPLATES": f"{root}/templates",
                "HEAT_CONFIG_HOOKS": f"{root}/hooks",
                "HEAT_SHELL_CONFIG": str(self.rendered),
                "HEAT_CONFIG_DEPLOYED": f"{root}/deployed",
                "HEAT_CONFIG_DEPLOYED_OLD": f"{root}/old",
                "HEAT_SCRIPT_WORKING": f"{root}/work",
                "HEAT_SCRIPT_OUTPUTS": f"{root}/out",
            },
            executable=f"{root}/bin/os-collect-config",
            timeout=120,
        )

    def state(self) -> dict[str, tuple[int, str]]:
        """Return modes and contents of the round's files, without those that contain a time."""
        folders = ("cache", "deployed", "work", "out")
        paths = [path for name in folders for path in (self.root / name).rglob("*")]
        paths += [self.rendered, *self.root.glob("signal.*")]
        return {
            str(path.relative_to(self.root)): (
                path.stat().st_mode,
                path.read_text().replace(str(self.root), "ROOT"),
            )
            for path in paths
            if path.is_file()
        }


def test_heat_agents_elements_do_the_same_under_both_agents(
    heat_agents: Path, tmp_path: Path
) -> None:
    states = {}
    for name, programs in (("upstream", Path(sys.executable).parent), ("ours", ROOT / "hooks")):
        server = Server(tmp_path / name, heat_agents, programs)
        done = server.round(DEPLOYMENT)
        assert done.returncode == 0, done.stderr
        (signal,) = server.root.glob("signal.*")
        answer = json.loads(signal.read_text())
        assert (answer["deploy_status_code"], answer["state"]) == (0, "done")
        assert answer["deploy_stdout"] == "hello wörld\n"
        signal.unlink()
        assert server.round(DEPLOYMENT).returncode == 0
        assert not signal.exists(), "nothing has changed"
        signal.write_text(json.dumps(answer))
        states[name] = server.state()
    assert states["ours"].keys() == states["upstream"].keys()
    assert states["ours"] == states["upstream"]
