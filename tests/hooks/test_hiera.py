"""The hiera hook, and its data as read by Puppet and the program hiera."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from programs import completed, program

VALUES = ["text", "", "ünïcode ☃ 🍲", "a\0b", None, True, 7, 1.5, [1, None], {"a": {"b": []}}]


#: Items that YAML reads: the quotes are those of production templates.
HIERARCHY = [
    '"%{::uuid}"',
    "heat_config_%{::deploy_config_name}",
    "'role/%{role}'",
    "'it''s'",
    '"a \\"b\\" \\u00fc"',
    "common",
    "  blanks  ",
    "line\n",
    "commented # not this",
    '"quoted" # nor this',
    "hash#tag",
    "colon:tag",
    "-dash",
    "two words",
    "wörld☃",
    "one\n  - two",
    "",
    "\n",
    7,
    True,
    None,
    ["first", "'second'", '"third"', 3, ["fourth"]],
]


@pytest.fixture
def hiera(hook_of, tmp_path: Path):
    """Run the hiera hook on a config; keywords go to make_deployment."""
    return hook_of(
        "hiera",
        HEAT_PUPPET_HIERA_DATADIR=tmp_path / "data",
        HEAT_HIERA_CONFIG=tmp_path / "hiera.yaml",
        HEAT_HIERA_ELEMENT_CHECK_CMD="echo empty",
    )


def mode(path: Path) -> int:
    """Return the permission bits of *path*."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.tool("puppet")
def test_puppet_finds_the_data(hiera, run_hook, make_deployment, tmp_path: Path):
    config = {
        "hierarchy": [
            "heat_config_%{::deploy_config_name}",
            '"roles/%{role}"',
            "ü☃🍲",
            "common",
            "common",
        ],
        "datafiles": {
            "ü☃🍲": {"soup": "🍲"},
            "common": {"ntp::servers": ["a", "b"], "who": "common"},
            "roles/web": {"who": "wéb", "deep": {"n": 1, "yes": True}},
        },
    }
    assert hiera(config).status == 0
    manifest = (
        'file { "${::heat_outputs_path}.result": content => '
        'String([lookup("ntp::servers"), lookup("who"), lookup("deep"), lookup("typed"), '
        'lookup("soup")]) }'
    )
    answer = run_hook(
        "puppet.py",
        make_deployment(
            manifest,
            inputs={"typed": 5, "role": "web"},
            outputs=["result"],
            options={"enable_hiera": True},
            name="mine",
        ),
        env={
            "HEAT_PUPPET_WORKING": str(tmp_path / "work"),
            "HEAT_PUPPET_OUTPUTS": str(tmp_path / "out"),
            "HEAT_PUPPET_LOGDIR": str(tmp_path / "logs"),
            "HEAT_PUPPET_HIERA_DATADIR": str(tmp_path / "data"),
            "HEAT_HIERA_CONFIG": str(tmp_path / "hiera.yaml"),
            "HEAT_PUPPET_CMD": str(puppet_with(tmp_path)),
        },
        timeout=240,
    )
    assert answer.status == 0, answer.stderr
    assert answer.outputs["result"] == "[['a', 'b'], 'wéb', {'n' => 1, 'yes' => true}, 5, '🍲']"


def puppet_with(tmp_path: Path) -> Path:
    """Write a Puppet with this test's Hiera configuration instead of the host's."""
    text = f'verb=$1; shift\nexec puppet "$verb" --hiera_config {tmp_path}/hiera.yaml "$@"'
    return program(tmp_path / "puppet", text)


def flat(items):
    """Return the names in a hierarchy as Hiera 3 looks them up, lists in it flattened, in order."""
    for item in items:
        if isinstance(item, list):
            yield from flat(item)
        elif item is not None:
            yield str(item).lower() if isinstance(item, bool) else str(item)


@pytest.mark.network
def test_hierarchy_is_that_of_heat_agents(hiera, run_theirs, make_deployment, tmp_path: Path):
    """heat-agents writes each item as it is, and YAML reads it without its quotes."""
    config = {"hierarchy": HIERARCHY}
    env = {
        "HEAT_PUPPET_HIERA_DATADIR": str(tmp_path / "data"),
        "HEAT_HIERA_CONFIG": str(tmp_path / "theirs.yaml"),
        "HEAT_HIERA_ELEMENT_CHECK_CMD": "echo empty",
        "PYTHONUTF8": "1",
    }
    assert run_theirs("hiera", make_deployment(config), env=env) is not None
    theirs = yaml.safe_load((tmp_path / "theirs.yaml").read_text())
    wanted = list(flat(theirs[":hierarchy"]))
    assert "%{::uuid}" in wanted
    assert hiera(config, options={"hiera_version": 3}).status == 0
    assert yaml.safe_load((tmp_path / "hiera.yaml").read_text()) == {**theirs, ":hierarchy": wanted}
    assert hiera(config).status == 0
    entries = yaml.safe_load((tmp_path / "hiera.yaml").read_text())["hierarchy"]
    assert entries == [{"name": name, "path": f"{name}.json"} for name in wanted]


@pytest.mark.parametrize("item", ["%{::fqdn}", "a: b", "@x", '"a" b', "'open", "a\nb", '"\\q"'])
def test_item_that_is_no_yaml_is_a_name(hiera, tmp_path: Path, item):
    """With heat-agents, Puppet could not read the file: no template has them; % needs no quotes."""
    assert hiera({"hierarchy": [item]}).status == 0
    (entry,) = yaml.safe_load((tmp_path / "hiera.yaml").read_text())["hierarchy"]
    assert entry == {"name": item, "path": f"{item}.json"}


@pytest.mark.network
@pytest.mark.tool("hiera")
def test_quoted_level_is_read_as_with_heat_agents(
    hiera, run_theirs, make_deployment, tmp_path: Path
):
    """The program hiera finds the quoted level in both files; Puppet does so above."""
    config = {
        "hierarchy": ['"%{role}"', "", "common"],
        "datafiles": {"web": {"who": "web"}, "common": {"who": "common"}},
    }
    env = {
        "HEAT_PUPPET_HIERA_DATADIR": str(tmp_path / "data"),
        "HEAT_HIERA_CONFIG": str(tmp_path / "theirs.yaml"),
        "HEAT_HIERA_ELEMENT_CHECK_CMD": "echo empty",
    }
    assert run_theirs("hiera", make_deployment(config), env=env) is not None
    assert hiera(config, options={"hiera_version": 3}).status == 0
    for name in ("theirs.yaml", "hiera.yaml"):
        done = completed(["hiera", "-c", str(tmp_path / name), "who", "role=web"], check=True)
        assert done.stdout == "web\n", name


def test_configuration_has_format_5_and_private_modes(hiera, tmp_path: Path):
    answer = hiera({"hierarchy": ["a: b", "%{::fqdn}"], "datafiles": {"a: b": {"k": 1}}})
    assert (answer.status, answer.stdout, answer.stderr) == (0, "", "")
    assert (tmp_path / "hiera.yaml").read_text() == (
        "---\nversion: 5\ndefaults:\n"
        f'  datadir: "{tmp_path}/data"\n  data_hash: json_data\nhierarchy:\n'
        '  - name: "a: b"\n    path: "a: b.json"\n'
        '  - name: "%{::fqdn}"\n    path: "%{::fqdn}.json"\n'
    )
    assert mode(tmp_path / "hiera.yaml") == mode(tmp_path / "data" / "a: b.json") == 0o600
    assert mode(tmp_path / "data") == 0o700


def test_version_3_is_written_for_the_program_hiera(hiera, tmp_path: Path):
    assert hiera({"hierarchy": ["common"]}, options={"hiera_version": 3}).status == 0
    assert (tmp_path / "hiera.yaml").read_text() == (
        f'---\n:backends:\n  - json\n:json:\n  :datadir: "{tmp_path}/data"\n'
        ':hierarchy:\n  - "common"\n'
    )
    refused = hiera({"hierarchy": ["x"], "datafiles": {"d": 1}}, options={"hiera_version": 4})
    assert refused.status == 1
    assert "hiera_version" in refused.stderr
    assert not (tmp_path / "data" / "d.json").exists()


def test_data_of_every_json_type_is_written(hiera, tmp_path: Path):
    data = {str(number): value for number, value in enumerate(VALUES)}
    inputs = {f"unused_{number}": value for number, value in data.items()}
    assert hiera({"datafiles": {**data, "x": {"k": VALUES}}}, inputs=inputs).status == 0
    for name, value in data.items():
        assert json.loads((tmp_path / "data" / f"{name}.json").read_text()) == value
    assert json.loads((tmp_path / "data" / "x.json").read_text()) == {"k": VALUES}
    assert not (tmp_path / "hiera.yaml").exists()


@pytest.mark.defect("H9")
def test_shorter_data_replaces_longer_data(hiera, tmp_path: Path):
    hiera({"hierarchy": ["a", "b", "c"], "datafiles": {"x": list(range(100))}})
    hiera({"hierarchy": ["a"], "datafiles": {"x": {}}})
    assert (tmp_path / "data" / "x.json").read_text() == "{}"
    assert '"b"' not in (tmp_path / "hiera.yaml").read_text()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", "a\0", "."], ids=repr)
def test_name_that_leaves_the_directory_is_refused(hiera, tmp_path: Path, name):
    answer = hiera({"hierarchy": ["x"], "datafiles": {"good": 1, name: "planted"}})
    assert answer.status == 1
    assert json.dumps(name) in answer.stderr
    assert "planted" not in answer.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    "config",
    ["{", [1], {"hierarchy": "x"}, {"hierarchy": [{"a": "b"}]}, {"datafiles": [1]}],
    ids=repr,
)
def test_config_of_another_shape_is_refused(hiera, config):
    answer = hiera(config)
    assert answer.status == 1
    assert answer.stderr.endswith(".\n")


@pytest.mark.defect("K10")
def test_legacy_data_is_refused_without_showing_it(hiera, tmp_path: Path):
    env = {"HEAT_HIERA_ELEMENT_CHECK_CMD": 'echo {"common":"planted"}'}
    answer = hiera({"datafiles": {"x": 1}}, env=env)
    assert answer.status == 1
    assert "hiera.datafiles" in answer.stderr
    assert b"planted" not in answer.raw
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", ["/no/such/program", "false"])
def test_missing_os_apply_config_means_no_legacy_data(hiera, command):
    assert hiera({}, env={"HEAT_HIERA_ELEMENT_CHECK_CMD": command}).status == 0


@pytest.mark.defect("K18")
def test_two_megabytes_and_parallel_runs_succeed(hiera, tmp_path: Path):
    def one(number: int) -> int:
        config = {"hierarchy": [str(number)], "datafiles": {"same": [number] * 300_000}}
        return hiera(config).status

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(6))) == [0] * 6
    data = json.loads((tmp_path / "data" / "same.json").read_text())
    assert len(data) == 300_000
    assert len(set(data)) == 1
    assert (tmp_path / "hiera.yaml").read_text().count("name:") == 1


def test_only_the_data_directory_is_private(hiera, tmp_path: Path):
    """The configuration is in a directory of Puppet's, which other users traverse."""
    env = {
        "HEAT_HIERA_CONFIG": str(tmp_path / "puppet" / "hiera.yaml"),
        "HEAT_PUPPET_HIERA_DATADIR": str(tmp_path / "puppet" / "hieradata"),
    }
    assert hiera({"hierarchy": ["a/b"], "datafiles": {"a/b": 1}}, env=env).status == 0
    modes = {
        name: stat.S_IMODE((tmp_path / "puppet" / name).stat().st_mode)
        for name in (".", "hieradata", "hieradata/a", "hieradata/a/b.json", "hiera.yaml")
    }
    assert list(modes.values()) == [0o755, 0o700, 0o700, 0o600, 0o600]
