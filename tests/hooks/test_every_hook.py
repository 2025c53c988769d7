"""Rules for every hook of this collection, whatever its tool."""

import re
from pathlib import Path
from typing import Any

import pytest
from heat_config.settings import Settings
from programs import program

ROOT = Path(__file__).resolve().parents[2]
HOOKS = sorted((ROOT / "hooks").glob("*.py"))
PLACES = re.compile(r'"(HEAT_\w+_(?:WORKING|OUTPUTS|LOGDIR|DATADIR|DIR|CONFIG))"')
PROGRAMS = re.compile(r'"(HEAT_\w+_CMD)"')
#: A valid config for hooks that need more than text.
CONFIGS = {"chef": [], "hiera": {}, "json_file": {}, "cfn_init": {"config": {}}, "script": "exit 0"}
#: Hooks for which /bin/true is a tool that succeeds.
CONTENT = ("ansible", "apply_config", "cfn_init", "chef", "json_file", "puppet", "script")


@pytest.fixture
def run(run_hook, make_deployment, tmp_path: Path):
    """Run a hook on a config with its files in tmp_path and this program as its tool."""

    def run(name: str, config: Any, *, tool: object = "/bin/true", **keywords: Any):
        text = (ROOT / f"hooks/{name}.py").read_text()
        text += (ROOT / "hooks/heat_config/tools.py").read_text()
        env = {place: str(tmp_path / place) for place in PLACES.findall(text)}
        env |= dict.fromkeys(PROGRAMS.findall(text), str(tool))
        deployment = make_deployment(config, group=name, options={"chef_license": "accept"})
        return run_hook(f"{name}.py", deployment | keywords, env=env)

    return run


@pytest.mark.defect("K9", "K13")
@pytest.mark.parametrize("name", [path.stem for path in HOOKS])
def test_null_inputs_outputs_and_options_are_tolerated(run, name):
    nothing = dict.fromkeys(("inputs", "outputs", "options"))
    answer = run(name, CONFIGS.get(name, "{}"), **nothing)
    assert "failed unexpectedly" not in answer.stderr
    assert answer.status == 0 or name not in CONTENT


@pytest.mark.defect("K11")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ansible", "Ansible is not installed"),
        ("apply_config", "os-apply-config is not installed"),
        ("cfn_init", "element heat-cfntools"),
        ("chef", "Chef is not installed"),
        ("puppet", "element heat-config-puppet"),
        ("salt", "Salt is not installed"),
    ],
)
def test_missing_tool_is_status_127_with_a_sentence(run, name, words):
    answer = run(name, CONFIGS.get(name, "text"), tool="/no/such/program")
    assert answer.status == 127
    assert words in answer.stderr
    assert 'no program "/no/such/program" was found' in answer.stderr


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("ansible", "ansible 2.3.1.0", "Ansible 2.3.1.0 is too old"),
        ("chef", "Chef: 11.18.12", "Chef 11.18.12 is too old"),
        ("puppet", "3.8.7", "Puppet 3.8.7 is too old"),
        ("salt", "salt-call 2019.2.0", "Salt 2019.2.0 is too old"),
    ],
)
def test_old_tool_that_fails_is_named(run, tmp_path, name, version, words):
    """The versions are asked for after a failure only."""
    text = f'case "$*" in *--version*) echo {version} ;; *) echo no such option >&2; exit 5 ;; esac'
    answer = run(name, CONFIGS.get(name, "x: y"), tool=program(tmp_path / "old", text))
    assert answer.status == 5
    assert "no such option" in answer.stderr
    assert words in answer.stderr


NO_TEXT = [{"a": 1}, ["x"], 5, "a\0b"]
#: By the hook: words of the refusal, and configs.
REFUSED = {
    "script": ("config", NO_TEXT),
    "puppet": ("config", NO_TEXT),
    "ansible": ("config", NO_TEXT),
    "chef": ("run list", ["recipe[demo]", "", None, {"run_list": []}, [1], '{"a": 1}', "5"]),
    "cfn_init": ("must be a map", [[1], "no json", 7, '"text"']),
    "json_file": ("must be a map", ["{", "[]", [1], 5]),
}


@pytest.mark.parametrize(
    ("name", "config"),
    [(name, config) for name, (_words, configs) in REFUSED.items() for config in configs],
    ids=repr,
)
def test_config_of_another_shape_is_refused(run, name, config):
    answer = run(name, config)
    assert answer.status == 1
    assert REFUSED[name][0] in answer.stderr


@pytest.mark.parametrize("name", ["script", "puppet"])
def test_nul_in_an_input_is_a_sentence_that_names_it(run, name):
    answer = run(name, "", inputs=[{"name": "foo", "value": "se\0cret"}])
    assert answer.status == 1
    assert '"foo"' in answer.stderr
    assert "cret" not in answer.stderr


@pytest.mark.defect("H16")
def test_state_and_outputs_survive_a_reboot():
    """A reboot may fall between a hook's output and its signal; /var/run is empty then."""
    places = [Settings({}).state]
    for file in HOOKS:
        places += re.findall(r'^(?:OUTPUTS|WORKING) = "(.+)"$', file.read_text(), re.MULTILINE)
    assert len(places) > 8
    assert [place for place in places if not place.startswith("/var/lib/")] == []


@pytest.mark.defect("K12")
@pytest.mark.parametrize("group", ["kubelet", "atomic", "docker"])
def test_dropped_group_is_in_the_documentation_only(group):
    assert not list(ROOT.glob(f"elements/*-{group}")) + list(ROOT.glob(f"hooks/{group}.*"))
    dropped = (ROOT / "docs/hooks.rst").read_text().partition("\nDropped\n")[2]
    assert re.search(rf"^``{group}``\n(    .*\n)+", dropped, re.MULTILINE)[0].count("Use ``")
