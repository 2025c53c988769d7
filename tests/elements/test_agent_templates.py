"""The templates' output for metadata, by the real os-apply-config and os-collect-config."""

import json
import os
import runpy
import stat
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oslo_config import cfg
from programs import completed

ELEMENTS = Path(__file__).resolve().parents[2] / "elements"
TREES = (ELEMENTS / "os-collect-config/os-apply-config", ELEMENTS / "heat-config/os-apply-config")
CONF = ELEMENTS / "os-collect-config/os-apply-config/etc/os-collect-config.conf"
BIN = Path(sys.executable).parent

# The keys that Heat's engine puts under os-collect-config, by transport.
TRANSPORTS = {
    "POLL_SERVER_CFN": {
        "collectors": ["ec2", "cfn", "local"],
        "cfn": {
            "metadata_url": "http://192.0.2.1:8000/v1/",
            "access_key_id": "ACCESS",
            "secret_access_key": "SECRET",
            "stack_name": "demo",
            "path": "server.Metadata",
        },
    },
    "POLL_SERVER_HEAT": {
        "collectors": ["ec2", "heat", "local"],
        "heat": {
            "user_id": "user",
            "password": "PASSWORD",
            "auth_url": "http://192.0.2.1:5000/v3",
            "project_id": "project",
            "stack_id": "demo/11111111-2222-3333-4444-555555555555",
            "resource_name": "server",
            "region_name": "RegionTwo",
        },
    },
    "POLL_TEMP_URL": {
        "collectors": ["ec2", "request", "local"],
        "request": {
            "metadata_url": "http://192.0.2.1:8080/v1/AUTH_p/c/o?temp_url_sig=ab&temp_url_expires=9"
        },
    },
    "ZAQAR_MESSAGE": {
        "collectors": ["ec2", "zaqar", "local"],
        "zaqar": {
            "user_id": "user",
            "password": "PASSWORD",
            "auth_url": "http://192.0.2.1:5000/v3",
            "project_id": "project",
            "queue_id": "queue",
            "region_name": "RegionTwo",
        },
    },
}

# Loads a configuration file as the agent does, and prints every option.
AGENT_READS = """
import json, sys
from oslo_config import cfg
from os_collect_config import collect
collect.setup_conf()
cfg.CONF(["--config-file", sys.argv[1]], prog="os-collect-config")
unknown = set(cfg.CONF.collectors) - set(collect.COLLECTORS)
print(json.dumps({
    "unknown": sorted(unknown),
    "DEFAULT": {name: cfg.CONF[name] for name in (
        "command", "collectors", "polling_interval", "min_polling_interval", "splay", "cachedir")},
    **{group: dict(cfg.CONF[group]) for group in ("cfn", "heat", "request", "zaqar", "ec2")},
}))
"""


def render(metadata: object) -> "subprocess.CompletedProcess[str]":
    """Run the template program alone."""
    return completed([sys.executable, CONF], input=json.dumps(metadata))


def apply_config(metadata: object, directory: Path) -> "subprocess.CompletedProcess[str]":
    """Run the real os-apply-config on the elements' templates, into `directory`/out."""
    tree = directory / "templates"
    tree.mkdir(exist_ok=True)
    for source in TREES:
        subprocess.run(["cp", "-R", f"{source}/.", tree], check=True)
    document = directory / "metadata.json"
    document.write_text(json.dumps(metadata))
    return completed(
        [
            BIN / "os-apply-config",
            *("--templates", tree),
            *("--output", directory / "out"),
            *("--metadata", document),
            *("--fallback-metadata", directory / "none"),
        ],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
    )


def agent_reads(conf: Path) -> dict:
    """Return the options that the real os-collect-config reads from a configuration file."""
    run = completed([sys.executable, "-c", AGENT_READS, conf], check=True)
    return json.loads(run.stdout)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[object], dict]:
    """Render a configuration for metadata of the agent, and return what the agent reads in it."""

    def run(sent: object) -> dict:
        (tmp_path / "conf").write_text(render({"os-collect-config": sent}).stdout)
        return agent_reads(tmp_path / "conf")

    return run


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_agent_reads_back_the_values_of_heat(transport: str, tmp_path: Path) -> None:
    sent = TRANSPORTS[transport]
    run = apply_config({"os-collect-config": sent, "deployments": []}, tmp_path)
    assert run.returncode == 0, run.stderr
    read = agent_reads(tmp_path / "out/etc/os-collect-config.conf")
    assert read["unknown"] == []
    assert read["DEFAULT"]["collectors"] == sent["collectors"]
    assert read["DEFAULT"]["command"] == "os-refresh-config"
    for section, options in sent.items():
        if section != "collectors":
            for option, value in options.items():
                expected = [value] if option == "path" else value
                assert read[section][option] == expected


@pytest.mark.defect("A2")
def test_files_with_credentials_are_private(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        apply_config({"os-collect-config": TRANSPORTS["POLL_SERVER_CFN"]}, tmp_path)
    finally:
        os.umask(previous)
    for name in ("etc/os-collect-config.conf", "var/run/heat-config/heat-config"):
        assert stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) == 0o600


def test_missing_metadata_gives_a_configuration_that_polls(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.write_text(render({}).stdout)
    chosen = agent_reads(conf)["DEFAULT"]
    assert chosen["command"] == "os-refresh-config"
    assert "heat_local" in chosen["collectors"]


def test_intervals_are_rendered_and_splay_is_not(read: Any, tmp_path: Path) -> None:
    chosen = read({"polling_interval": 5, "min_polling_interval": "2", "splay": 30.7})["DEFAULT"]
    names = ("polling_interval", "min_polling_interval", "splay")
    assert [chosen[name] for name in names] == [5, 2, 0]
    assert (tmp_path / "conf").read_text().endswith("[start]\nsplay = 30\n")


def test_transport_that_was_switched_off_is_removed() -> None:
    sent = {**TRANSPORTS["POLL_SERVER_HEAT"], "cfn": dict.fromkeys(["metadata_url", "path"])}
    assert "[cfn]" not in render({"os-collect-config": sent}).stdout


def test_zaqar_verifies_certificates_by_default(read: Any) -> None:
    sent = TRANSPORTS["ZAQAR_MESSAGE"]
    chosen = read(sent)["zaqar"]
    assert chosen["ssl_certificate_validation"] is True
    # Without a file it would neither verify nor collect.
    assert chosen["ca_file"] == "/etc/ssl/certs/ca-certificates.crt"
    sent = {**sent, "zaqar": {**sent["zaqar"], "ssl_certificate_validation": False}}
    assert read(sent)["zaqar"]["ssl_certificate_validation"] is False


def test_certificates_of_other_distributions_are_found(tmp_path: Path) -> None:
    template = runpy.run_path(str(CONF))
    chosen = template["certificates"]
    places = (str(tmp_path / "none"), str(tmp_path / "bundle"))
    chosen.__globals__["CERTIFICATES"] = places
    assert chosen() == places[0]
    (tmp_path / "bundle").touch()
    assert chosen() == places[1]


@pytest.mark.defect("A3")
@pytest.mark.parametrize(
    "config",
    [
        {"cfn": {"stack_name": "x\ncommand = evil"}},
        {"cfn": {"path": ["a.Metadata", "b\r\ncommand = evil"]}},
        {"heat": {"password": "p\x0bcommand = evil"}},
        {"heat": {"password": "p\u2028command = evil"}},
        {"command": "a\0b"},
        {"heat": {"password": "evil\\$"}},
        {"command": ["evil"]},
        {"cfn": {"stack_name": {"evil": 1}}},
        {"cfn": "evil"},
        {"collectors": ["cfn", "evil"]},
        {"collectors": '["cfn"]'},
        {"polling_interval": "evil"},
        {"polling_interval": -1},
        {"splay": "evil"},
        "evil",
    ],
    ids=repr,
)
def test_invalid_value_is_refused_and_the_old_file_kept(config: object, tmp_path: Path) -> None:
    old = tmp_path / "out/etc/os-collect-config.conf"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    run = apply_config({"os-collect-config": config}, tmp_path)
    assert run.returncode == 1
    assert old.read_text() == "old"
    assert "refused: " in run.stderr
    assert "evil" not in run.stderr.split("refused:")[1]


@pytest.fixture(scope="module")
def in_process() -> dict[str, Any]:
    """The names that the template's program defines."""
    names: dict[str, Any] = {"__name__": "template"}
    exec(compile(CONF.read_text(), str(CONF), "exec"), names)
    return names


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples: making one reads the names of those before it."""
    return tmp_path_factory.mktemp("conf")


@pytest.mark.defect("A3")
@given(st.text(string.printable + "äß$€'\"", min_size=1))
@settings(max_examples=1000, deadline=None)
def test_any_value_on_one_line_survives_oslo_config(in_process, scratch, value: str) -> None:
    metadata = {"os-collect-config": {"heat": {"password": value}}}
    if len(f"x{value}x".splitlines()) > 1 or "\\$" in value:
        with pytest.raises(in_process["Refused"]):
            in_process["render"](metadata)
        return
    path = scratch / "conf"
    path.write_text(in_process["render"](metadata))
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.StrOpt("password"), group="heat")
    conf(["--config-file", str(path)])
    assert conf.heat.password == value


def test_new_deployments_restart_an_agent_that_polls_slowly() -> None:
    def conf(deployments: object, **config: object) -> str:
        return render({"os-collect-config": config, "deployments": deployments}).stdout

    one, two = [{"id": "1"}], [{"id": "1"}, {"id": "2"}]
    assert conf(one) == conf(one) != conf(two)
    assert conf(one, polling_interval=60) != conf(two, polling_interval=60)
    assert conf(one, polling_interval=5) == conf(two, polling_interval=5)
    assert "Deployments" not in conf([])


def test_deployments_are_rendered_as_the_same_json(tmp_path: Path) -> None:
    deployments = [{"id": "1", "config": "#!/bin/sh\necho '<&>' {{x}} \"€\"\n", "inputs": []}]
    apply_config({"deployments": deployments}, tmp_path)
    written = (tmp_path / "out/var/run/heat-config/heat-config").read_text()
    assert json.loads(written) == deployments
