"""The phases of the elements as the resident agent runs them: os-apply-config is loaded."""

import json
import subprocess
from pathlib import Path

from programs import completed, program

from .conftest import HOOKS, Phases

ELEMENTS = HOOKS.parent / "elements"
STEP = ELEMENTS / "os-apply-config/os-refresh-config/configure.d/20-os-apply-config"
TEMPLATES = (
    ELEMENTS / "os-collect-config/os-apply-config/etc/os-collect-config.conf",
    ELEMENTS / "heat-config/os-apply-config/var/run/heat-config/heat-config",
)
METADATA = {
    "os-collect-config": {"collectors": ["ec2", "cfn"], "cfn": {"metadata_url": "http://h/v1/"}},
    "deployments": [{"id": "one", "inputs": [{"name": "n", "value": "s3cr3t"}]}],
}


SLOW = ("argparse", "gettext", "pathlib", "shutil", "urllib")


def refresh(phases: Phases, document: Path) -> "subprocess.CompletedProcess[str]":
    """Run the phases in a Python that has both programs loaded, without a PATH to others."""
    environment = {
        "PATH": "/nowhere",
        "OS_REFRESH_CONFIG_BASE_DIR": str(phases.base),
        "OS_CONFIG_FILES": str(document),
        "OS_CONFIG_APPLIER_TEMPLATES": str(phases.root / "templates"),
        "OS_COLLECT_CONFIG_CONF": str(phases.root / "none"),
        "HEAT_BOOT_METADATA": str(phases.root / "none"),
    }
    driver = (
        f"import sys; sys.path.insert(0, {str(HOOKS)!r})\n"
        "from heat_agent.apply import program as apply\n"
        "from heat_agent.refresh import program\n"
        f"apply.LOG_FILE = {str(phases.root / 'log')!r}\n"
        f"program.LOCK_FILE = {str(phases.lock)!r}\n"
        f"sys.exit(program.main([], {environment!r}))\n"
    )
    return completed(["/usr/bin/python3", "-IS", "-c", driver])


def test_change_is_rendered_without_another_program(phases):
    output = phases.root / "output"
    for template in TEMPLATES:
        # A template's path is that of the file that it makes.
        place = phases.root / "templates" / str(output / template.name).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(template.read_text())
        place.chmod(template.stat().st_mode & 0o777)
        control = template.with_name(f"{template.name}.oac")
        place.with_name(control.name).write_text(control.read_text())
    phases.script("20-os-apply-config", STEP.read_text())
    document = phases.root / "cfn.json"
    document.write_text(json.dumps(METADATA))
    done = refresh(phases, document)
    assert done.returncode == 0, done.stderr
    assert json.loads((output / "heat-config").read_text()) == METADATA["deployments"]
    conf = (output / "os-collect-config.conf").read_text()
    assert "collectors = ec2\ncollectors = cfn\n" in conf
    assert "[cfn]\nmetadata_url = http://h/v1/\n" in conf
    for name in ("heat-config", "os-collect-config.conf"):
        assert (output / name).stat().st_mode & 0o777 == 0o600
    assert "s3cr3t" not in done.stdout + done.stderr

    document.write_text(json.dumps({"os-collect-config": {"command": "x\ncollectors = cfn"}}))
    done = refresh(phases, document)
    assert done.returncode == 1
    assert "refused: 'os-collect-config.DEFAULT.command' does not fit on one line" in done.stderr
    assert (output / "os-collect-config.conf").read_text() == conf


def test_change_imports_no_slow_module(phases):
    """Each change would import it anew, as modules that a fork loads are lost."""
    output = phases.root / "modules"
    template = phases.root / "templates" / str(output).lstrip("/")
    program(template, "#!/usr/bin/python3 -IS\nimport sys; print(*sys.modules)\n")
    phases.script("20-os-apply-config", STEP.read_text())
    document = phases.root / "cfn.json"
    document.write_text(json.dumps(METADATA))
    done = refresh(phases, document)
    assert done.returncode == 0, done.stderr
    loaded = set(output.read_text().split())
    assert "heat_agent.refresh.program" in loaded
    assert not loaded & set(SLOW)
