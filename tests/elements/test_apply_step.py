"""20-os-apply-config, with the real os-apply-config behind it."""

import json
import os
import sys
from pathlib import Path

import pytest
from programs import completed, program

ELEMENTS = Path(__file__).resolve().parents[2] / "elements"
STEP = ELEMENTS / "os-apply-config/os-refresh-config/configure.d/20-os-apply-config"


class Step:
    """A cache of collected documents, a configuration, and one template."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cache = root / "cache"
        self.cache.mkdir()
        self.conf = root / "os-collect-config.conf"
        self.conf.write_text("[DEFAULT]\ncollectors = ec2\ncollectors = zaqar\n")
        program(root / "templates/all", f"#!{sys.executable}\nprint(open(0).read())\n")

    def document(self, name: str, content: object) -> Path:
        path = self.cache / f"{name}.json"
        path.write_text(json.dumps(content))
        return path

    def run(self, *documents: Path) -> dict[str, object]:
        """Run the step for these collected documents; return the metadata that templates see."""
        real = Path(sys.executable).with_name("os-apply-config")
        wrapper = program(
            self.root / "bin/os-apply-config",
            f'printf "%s\\n" "$@" >{self.root}/arguments\n'
            f'exec {real} --output {self.root}/out "$@"',
        )
        result = completed(
            [STEP],
            env={
                "PATH": f"{wrapper.parent}:{os.environ['PATH']}",
                "OS_CONFIG_FILES": ":".join(map(str, documents)),
                "OS_CONFIG_APPLIER_TEMPLATES": str(self.root / "templates"),
                "OS_COLLECT_CONFIG_CONF": str(self.conf),
                "HEAT_BOOT_METADATA": str(self.root / "cfn-init-data"),
            },
        )
        assert result.returncode == 0, result.stderr
        seen: dict[str, object] = json.loads((self.root / "out/all").read_text())
        return seen


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


def test_collected_documents_are_merged_over_the_boot_metadata(step: Step) -> None:
    (step.root / "cfn-init-data").write_text('{"a": "boot", "b": "boot"}')
    assert step.run(step.document("zaqar", {"a": "now"})) == {"a": "now", "b": "boot"}


@pytest.mark.defect("A7")
def test_files_of_the_cfn_tools_are_no_metadata(step: Step) -> None:
    """By default os-apply-config merges their last_metadata into everything, for ever."""
    step.run(step.document("ec2", {}))
    arguments = (step.root / "arguments").read_text().split()
    assert arguments == ["--fallback-metadata", str(step.root / "cfn-init-data")]


def test_unavailable_source_keeps_its_last_content(step: Step) -> None:
    """An empty Zaqar queue counts as unavailable: that is every boot without a change."""
    step.document(
        "zaqar", {"deployments": [{"name": "own", "config": {}}, {"name": "s", "group": "script"}]}
    )
    step.document("own", {"from": "an os-apply-config deployment"})
    step.document("s", {"never": "collected"})
    step.document("cfn", {"deployments": [], "of": "a transport before this one"})
    seen = step.run(step.document("ec2", {"instance-id": "i-1"}))
    assert sorted(seen) == ["deployments", "from", "instance-id"]
    assert len(seen["deployments"]) == 2  # type: ignore[arg-type]


def test_collected_documents_win_over_cached_ones(step: Step) -> None:
    step.document("zaqar", {"a": "remembered"})
    assert step.run(step.document("ec2", {"a": "collected"})) == {"a": "collected"}


@pytest.mark.parametrize(
    "name", ["../evil", "a:b", "", "missing", 7, None, "x" * 300, "a\0b", ".", ".."]
)
def test_names_from_the_network_become_no_paths(step: Step, name: object) -> None:
    (step.root / "evil.json").write_text('{"evil": 1}')
    step.document("zaqar", {"deployments": [{"name": name, "config": {}}], "ok": 1})
    assert step.run(step.document("ec2", {}))["ok"] == 1
    assert "evil" not in step.run(step.document("ec2", {}))


@pytest.mark.parametrize("content", [[], {"deployments": {"a": 1}}, {"deployments": ["a"]}])
def test_malformed_cached_documents_do_not_stop_the_run(step: Step, content: object) -> None:
    step.document("zaqar", content)
    assert step.run(step.document("ec2", {"a": 1}))["a"] == 1


@pytest.mark.parametrize("left", ["", '{"a": ', "\0\0"], ids=repr)
def test_document_broken_by_a_power_cut_is_skipped(step: Step, left: str) -> None:
    step.document("zaqar", {}).write_text(left)
    assert step.run(step.document("ec2", {"a": 1})) == {"a": 1}
