"""The puppet hook with the real Puppet."""

import json
import stat
from pathlib import Path

import pytest
from programs import program

JSON_VALUES = [
    "text",
    "",
    "two\nlines 'quoted' \"twice\"",
    "ünïcode ☃ 🍲",
    None,
    True,
    False,
    7,
    1.5,
    [1, "a", None],
    {"a": {"b": [True]}},
]

real = pytest.mark.tool("puppet")


def write(what: str, name: str = "result") -> str:
    """Return a manifest that writes the Puppet expression *what* to an output."""
    return f'file {{ "${{::heat_outputs_path}}.{name}": content => {what} }}\n'


@pytest.fixture
def puppet(hook_of, tmp_path: Path):
    """Run the puppet hook on a manifest; keywords go to make_deployment."""
    return hook_of(
        "puppet",
        timeout=240,
        HEAT_PUPPET_WORKING=tmp_path / "work",
        HEAT_PUPPET_OUTPUTS=tmp_path / "out",
        HEAT_PUPPET_LOGDIR=tmp_path / "logs",
        HEAT_PUPPET_HIERA_DATADIR=tmp_path / "hieradata",
        HEAT_HIERA_CONFIG=tmp_path / "hiera.yaml",
    )


BYTES = """
exec { 'bytes':
  command => "/usr/bin/printf '\\\\377\\\\000y' > ${::heat_outputs_path}.bytes",
  provider => shell,
}
exec { 'much':
  command => '/usr/bin/head -c 2000000 /dev/zero | /usr/bin/tr "\\0" a',
  provider => shell, logoutput => true,
}
"""


# One run for all that a manifest can show: the real Puppet takes two seconds to begin.
@pytest.mark.defect("K1", "K3")
@real
def test_inputs_of_every_json_type_are_facts_and_any_bytes_are_passed(puppet):
    inputs = {f"in{number}": value for number, value in enumerate(JSON_VALUES)}
    config = "".join(write(f'"${{::{name}}}"', name) for name in inputs) + BYTES
    config += write('"${::deploy_action} ${::deploy_config_name} ${::fqdn}"') + 'notice("hällo")'
    outputs = [*inputs, "result", "bytes", "absent"]
    answer = puppet(config, inputs=inputs, outputs=outputs, name="some name", action="UPDATE")
    expected = {
        name: value if isinstance(value, str) else "" if value is None else json.dumps(value)
        for name, value in inputs.items()
    }
    # Puppet's own status for a run with changes is 2.
    assert answer.status == 0, answer.stderr
    derived = answer.outputs.pop("result")
    assert derived.startswith("UPDATE some name ")
    assert len(derived.split()) == 4
    assert answer.outputs == {**expected, "bytes": "\ufffd\0y"}
    assert "hällo" in answer.stdout
    assert "\x1b[" not in answer.stdout
    assert "a" * 2_000_000 in answer.stdout


@real
def test_hiera_data_keeps_types_and_is_read_without_a_hierarchy(puppet, tmp_path: Path):
    inputs = {"n": 5, "deep": {"a": [1, None]}, "t": "x"}
    config = (
        write('String(lookup("n") + 1)', "n")
        + write('String(lookup("deep")["a"][0] + 1)', "deep")
        + write('String($facts["n"] =~ Undef)', "fact")
    )
    answer = puppet(
        config,
        inputs=inputs,
        outputs=["n", "deep", "fact"],
        options={"enable_hiera": True, "enable_facter": "false"},
        name="typed",
    )
    assert answer.status == 0, answer.stderr
    assert answer.outputs == {"n": "6", "deep": "2", "fact": "true"}
    assert stat.S_IMODE((tmp_path / "hieradata").stat().st_mode) == 0o700


@pytest.fixture
def printing(tmp_path: Path):
    """A Puppet that prints its manifest; the real one takes two seconds of processor time."""
    fake = program(tmp_path / "printing", 'for manifest; do :; done\nexec cat "$manifest"')
    return {"HEAT_PUPPET_CMD": str(fake)}


@pytest.fixture
def watching(tmp_path: Path):
    """A Puppet without configuration, which copies its data."""
    text = f'[ "$1" = config ] && exit 1\ncp -p {tmp_path}/hieradata/*.json {tmp_path}/seen.json'
    fake = program(tmp_path / "watching", text)
    return {"HEAT_PUPPET_CMD": str(fake)}


@pytest.mark.defect("H10")
def test_hiera_data_has_no_credential_and_is_removed_after_the_run(
    puppet, watching, tmp_path: Path
):
    inputs = {
        "pw": "hunter2",
        "deploy_password": "HEATPW",
        "deploy_signal_id": "http://h/?Signature=S",
        "deploy_user_id": "u",
    }
    answer = puppet("x", inputs=inputs, options={"enable_hiera": True}, env=watching)
    assert answer.status == 0
    seen = tmp_path / "seen.json"
    assert stat.S_IMODE(seen.stat().st_mode) == 0o600
    assert set(json.loads(seen.read_text())) == {
        "pw",
        "deploy_action",
        "deploy_resource_name",
        "deploy_server_id",
        "deploy_stack_id",
    }
    assert list((tmp_path / "hieradata").iterdir()) == []
    assert not list((tmp_path / "work").glob("*.yaml"))


HIERARCHY = """
version: 5
hierarchy:
  - {name: own, path: own.json, data_hash: json_data, datadir: DIRECTORY}
  - name: heat
    path: "heat_config_%{facts.deploy_config_name}.json"
    data_hash: json_data
    datadir: DIRECTORY
"""


@real
@pytest.mark.parametrize("place", ["puppet.conf", "codedir", "confdir"])
def test_hierarchy_of_the_image_is_obeyed_wherever_puppet_has_it(puppet, tmp_path: Path, place):
    """An option --hiera_config would win, and the image's own data would be lost."""
    confdir, data = tmp_path / ".puppetlabs/etc/puppet", tmp_path / "hieradata"
    code = tmp_path / ".puppetlabs/etc/code"
    for directory in (confdir, code, data):
        directory.mkdir(parents=True)
    files = {
        "puppet.conf": tmp_path / "elsewhere.yaml",
        "codedir": code / "hiera.yaml",
        "confdir": confdir / "hiera.yaml",
    }
    files[place].write_text(HIERARCHY.replace("DIRECTORY", str(data)))
    setting = f"hiera_config={files[place]}\n" if place == "puppet.conf" else ""
    (confdir / "puppet.conf").write_text(f"[main]\ncodedir={code}\n{setting}")
    (data / "own.json").write_text('{"of_the_image": "kept"}')
    # Puppet reads the directories of root from /etc; "config" and "apply" both take --confdir.
    text = f'verb=$1; shift\nexec puppet "$verb" --confdir {confdir} "$@"'
    if place != "puppet.conf":
        # What it then applies is shown once; where it looks, Puppet itself says.
        text = f'[ $1 = config ] || {{ echo "words: $@"; exit; }}\n{text}'
    wrapper = program(tmp_path / "puppet", text)
    answer = puppet(
        write("\"${lookup('of_the_image')} ${lookup('word')}\""),
        inputs={"word": "here"},
        outputs=["result"],
        options={"enable_hiera": True},
        name="of-the-image",
        env={"HEAT_PUPPET_CMD": str(wrapper)},
    )
    assert answer.status == 0, answer.stderr
    if place == "puppet.conf":
        assert answer.outputs == {"result": "kept here"}
    else:
        assert answer.stdout.startswith("words: apply ")
        assert "--hiera_config" not in answer.stdout


@real
def test_failing_resource_is_reported(puppet):
    failed = puppet("exec { '/bin/false': }")
    assert failed.status in (4, 6)
    assert "/bin/false" in failed.stderr


@pytest.mark.defect("K4")
@real
def test_tags_and_modulepath_are_passed_and_inputs_stay_out_of_logs(puppet, tmp_path: Path):
    module = tmp_path / "modules" / "greet" / "manifests"
    module.mkdir(parents=True)
    (module / "init.pp").write_text("class greet { " + write("'from the module'") + " }")
    options = {"modulepath": str(tmp_path / "modules"), "tags": ["greet"]}
    options |= {"enable_hiera": True, "enable_verbose": False}
    config = "include greet\n" + write("'not tagged'", "other")
    inputs = {"secret": "planted-in-a-fact"}
    answer = puppet(config, inputs=inputs, outputs=["result", "other"], options=options)
    assert answer.status == 0, answer.stderr
    assert answer.outputs == {"result": "from the module"}
    assert b"planted" not in answer.raw
    assert "planted" not in answer.log
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"planted" not in path.read_bytes(), path


@pytest.mark.defect("H9")
def test_files_are_private_and_logs_are_kept(puppet, printing, tmp_path: Path):
    puppet("notice('one')\nnotice('two')\n", id="the-id", env=printing)
    puppet("notice('three')", id="the-id", env=printing)
    script = tmp_path / "work" / "the-id.pp"
    assert script.read_text() == "notice('three')"
    log = tmp_path / "logs" / "2026-01-02-03-04-05Z-the-id-stdout.log"
    assert "three" in log.read_text()
    assert "one" not in log.read_text()
    for path in (script, log):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.defect("K17")
def test_option_names_in_heat_agents_documentation_are_accepted(puppet, tmp_path: Path):
    seen = tmp_path / "seen"
    fake = program(
        tmp_path / "puppet",
        '[ "$1" = config ] && exit\nenv | grep FACTER_foo\necho "$@"\n'
        f"ls {tmp_path}/hieradata/* >{seen}",
    )

    def facts_and_data(**options):
        env = {"HEAT_PUPPET_CMD": str(fake)}
        answer = puppet("x", inputs={"foo": "a"}, options=options, name="known", env=env)
        return "FACTER_foo" in answer.stdout, bool(seen.read_text())

    assert facts_and_data() == (True, False)
    assert facts_and_data(use_facter=False, use_hiera=True) == (False, True)


@pytest.mark.parametrize("name", ["../../evil", "a/b", "x" * 300], ids=["up", "slash", "long"])
def test_name_that_cannot_be_a_data_file_is_refused(puppet, tmp_path: Path, name):
    env = {"HEAT_PUPPET_CMD": str(program(tmp_path / "puppet", ""))}
    answer = puppet("x", name=name, options={"enable_hiera": True}, env=env)
    assert answer.status == 1
    assert "file name" in answer.stderr
    assert not list(tmp_path.rglob("*evil*"))
