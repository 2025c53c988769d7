"""The apply-config hook with the real os-apply-config."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from programs import program

real = pytest.mark.tool("os-apply-config")


@pytest.fixture
def metadata(tmp_path: Path):
    """Metadata and a folder for templates; returns (write template, environment)."""
    data = {"name": "wörld ☃", "n": 5, "on": True, "none": None, "list": [1], "map": {"a": 1.5}}
    (tmp_path / "metadata.json").write_text(json.dumps(data))
    root = tmp_path / "templates"
    target = tmp_path / "target"

    def template(name: str, text: str) -> Path:
        file = root / str(target / name).lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir(exist_ok=True)
        file.write_text(text)
        return target / name

    environment = {
        "OS_CONFIG_FILES": str(tmp_path / "metadata.json"),
        "OS_CONFIG_APPLIER_TEMPLATES": str(root),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    return template, environment


@pytest.fixture
def apply_config(hook_of, metadata):
    """Run the apply-config hook; keywords go to make_deployment."""
    return hook_of("apply-config", **metadata[1])


@real
def test_templates_are_rendered_with_every_json_type(apply_config, metadata):
    made = metadata[0]("made", "{{name}}|{{n}}|{{on}}|{{none}}|{{list}}|{{map}}")
    answer = apply_config()
    assert answer.status == 0, answer.stderr
    assert made.read_text() == 'wörld ☃|5|true||[1]|{"a": 1.5}'
    assert "not used" not in answer.stderr
    assert answer.outputs == {}


@real
def test_warning_tells_that_the_config_is_not_used(apply_config, metadata):
    metadata[0]("made", "{{name}}")
    answer = apply_config({"name": "planted"}, inputs={"name": "planted"}, outputs=["result"])
    assert answer.status == 0
    assert "was not used" in answer.stderr
    assert "planted" not in answer.log
    assert b"planted" not in answer.raw


@real
def test_failing_template_fails_the_deployment(apply_config, metadata):
    metadata[0]("made", "{{name}}")
    metadata[0]("made.oac", "no-such-key: 1\n")
    answer = apply_config()
    assert answer.status == 1
    assert answer.stderr


@real
def test_two_megabytes_and_parallel_runs_succeed(apply_config, metadata):
    made = metadata[0]("made", "{{name}}" + "a" * 2_000_000)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: apply_config(), range(3)))
    assert [answer.status for answer in answers] == [0] * 3
    assert made.read_text() == "wörld ☃" + "a" * 2_000_000


@pytest.mark.defect("A7")
def test_files_of_the_cfn_tools_are_no_metadata(apply_config, tmp_path: Path):
    fake = program(tmp_path / "os-apply-config", 'echo "$@"')
    answer = apply_config(env={"HEAT_APPLY_CONFIG_CMD": str(fake)})
    assert answer.stdout == "--fallback-metadata /var/lib/heat-cfntools/cfn-init-data\n"


def test_streams_and_status_are_the_answer(apply_config, tmp_path: Path):
    fake = program(tmp_path / "fake", "printf 'out\\377'; echo err >&2; exit 3")
    answer = apply_config(env={"HEAT_APPLY_CONFIG_CMD": str(fake)})
    assert (answer.status, answer.stdout, answer.stderr) == (3, "out\ufffd", "err\n")


@real
@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o755), (0o077, 0o700)])
def test_new_directories_have_the_agents_umask(apply_config, metadata, umask, expected):
    made = metadata[0]("new/deep/file", "{{n}}")
    before = os.umask(umask)
    try:
        assert apply_config().status == 0
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (made.parent, made.parent.parent)]
    assert modes == [expected, expected]
    assert made.stat().st_mode & 0o777 == 0o644  # os-apply-config's own mode without an .oac
