"""The docker-cmd hook and its clean-up, with real containers under podman."""

from __future__ import annotations

import functools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from programs import program

# Ends at once on SIGTERM; "sleep" as a container's first process would not.
WAIT = ["sh", "-c", "trap exit TERM; sleep 300 & wait"]
STACK = {"deploy_stack_id": "stack/8f0c", "deploy_resource_name": "containers"}


@pytest.fixture
def docker_cmd(hook_of, tmp_path: Path):
    """Run the hook on a config, without an engine unless *env* names one."""
    return hook_of("docker-cmd", HEAT_SHELL_CONFIG=tmp_path / "heat-config")


@pytest.fixture
def real(docker_cmd, podman):
    """Run the hook with podman."""

    def run(config, **keywords):
        env = {**podman.environment, "HEAT_DOCKER_CMD": podman.program}
        return docker_cmd(config, env=env, **keywords)

    return run


@pytest.fixture(params=["podman", "docker"])
def each_real(request, docker_cmd):
    """Run the hook with podman, then with docker's own command line on podman's engine.

    For the tests that are the first to use a subcommand, an option or an answer of the engine.
    """
    if request.param == "podman":
        return request.getfixturevalue("real")
    env = {**request.getfixturevalue("docker_environment"), "HEAT_DOCKER_CMD": "docker"}
    return functools.partial(docker_cmd, env=env)


@pytest.fixture
def stub(hook_of, tmp_path: Path):
    """Run the hook with a stub engine without containers; ``stub.calls()`` are its words."""
    engine = program(tmp_path / "engine", f'echo "$@" >>{tmp_path}/calls')
    run = hook_of("docker-cmd", HEAT_SHELL_CONFIG=tmp_path / "heat-config", HEAT_DOCKER_CMD=engine)
    run.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    return run


@pytest.fixture
def clean_up(clean_up_of, podman):
    """Run the step of os-refresh-config with these deployments in the list and from Heat."""
    return clean_up_of("docker-cmd", {**podman.environment, "HEAT_DOCKER_CMD": podman.program})


def test_empty_config_does_nothing(docker_cmd):
    for config in ("", {}, None):
        answer = docker_cmd(config, env={"HEAT_DOCKER_CMD": "/no/such/program"})
        assert (answer.status, answer.stdout, answer.stderr) == (0, "", "")


def test_missing_engine_is_reported_in_a_sentence(docker_cmd):
    answer = docker_cmd({"a": {"image": "i"}}, env={"HEAT_DOCKER_CMD": "/no/such/program"})
    assert answer.status == 127
    assert "heat-config-docker-cmd" in answer.stderr


@pytest.mark.defect("K6")
@pytest.mark.parametrize(
    ("config", "part"),
    [
        ([1], "must be a map"),
        ("a: b\nc: [}", "is not YAML (line 2)"),
        ({"a": "text"}, '"a" must be a map'),
        ({"a": {}}, '"a" has no image'),
        ({"../a": {"image": "i"}}, "cannot be the name"),
        ({"-a": {"image": "i"}}, "cannot be the name"),
        ({"a": {"action": "exec"}}, '"a" is empty'),
        ({"a": {"action": "exec", "command": []}}, '"a" is empty'),
        ({"a": {"action": "stop", "image": "i"}}, "must be run or exec"),
        ({"a": {"image": "i", "start_order": "x"}}, "start_order"),
        ({"a": {"image": "i", "exit_codes": ["x"]}}, "exit_codes"),
    ],
)
def test_malformed_config_is_reported_before_a_container_runs(docker_cmd, config, part):
    answer = docker_cmd(config, env={"HEAT_DOCKER_CMD": "/bin/true"})
    assert answer.status == 1
    assert part in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.tool("podman")
def test_run_and_exec_in_order_with_labels(each_real, podman):
    config = {
        "second": {
            "action": "exec",
            "start_order": 2,
            "command": ["first", "/bin/sh", "-c", "echo in $NAME; id -u"],
            "user": "0",
        },
        "first": {
            "image": podman.image,
            "start_order": 1,
            "net": "host",
            "environment": ["NAME=the first"],
            "volumes": ["/etc:/host-etc:ro", ""],
            "command": WAIT,
        },
    }
    answer = each_real(config, inputs=STACK, id="c0ffee00-0000-4000-8000-000000000001")
    assert (answer.status, answer.stderr) == (0, "")
    assert answer.stdout.endswith("in the first\n0\n")
    container = podman.inspect("first")
    assert container["Config"]["Labels"] == {
        "deploy_stack_id": "stack/8f0c",
        "deploy_resource_name": "containers",
        "config_id": "c0ffee00-0000-4000-8000-000000000001",
        "container_name": "first",
        "managed_by": "docker-cmd",
    }
    assert container["State"]["Running"]


@pytest.mark.tool("podman")
def test_yaml_text_is_run_with_attached_output(each_real, podman):
    answer = each_real(
        f"hello:\n  image: {podman.image}\n  detach: false\n"
        "  environment: {GREETING: 'grüß ☃', NUMBER: 7, NONE: null}\n"
        """  command: [sh, -c, 'echo "$GREETING" $NUMBER "[$NONE]"; echo trouble >&2']\n"""
    )
    assert (answer.status, answer.stdout, answer.stderr) == (0, "grüß ☃ 7 []\n", "trouble\n")


@pytest.mark.defect("K5", "K6")
@pytest.mark.tool("podman")
def test_failed_container_fails_though_another_printed(each_real, podman):
    """heat-agents reports success, or the last status."""
    config = {
        "a": {"image": podman.image, "detach": False, "command": ["echo", "fine"]},
        "b": {"image": podman.image, "detach": False, "command": ["sh", "-c", "exit 7"]},
        "c": {"image": podman.image, "detach": False, "command": ["false"]},
        "d": {"image": podman.image, "detach": False, "command": ["echo", "last"]},
    }
    answer = each_real(config)
    assert (answer.status, answer.stdout) == (7, "fine\nlast\n")
    assert '"b" ended with status 7' in answer.stderr
    assert '"c" ended with status 1' in answer.stderr


@pytest.mark.tool("podman")
def test_exit_codes_option_names_the_expected_codes(real, podman):
    entry = {"image": podman.image, "detach": False, "exit_codes": [2]}
    assert real({"a": {**entry, "command": ["sh", "-c", "exit 2"]}}).status == 0
    answer = real({"a": {**entry, "command": ["true"]}})
    assert answer.status == 1
    assert '"a" ended with status 0' in answer.stderr


@pytest.mark.tool("podman")
def test_unknown_image_fails_with_the_engines_message(each_real):
    answer = each_real({"a": {"image": "localhost/there-is-no-such-image"}})
    assert answer.status == 125
    assert "there-is-no-such-image" in answer.stderr


@pytest.mark.tool("podman")
def test_unknown_key_is_named(real, podman):
    answer = real({"a": {"image": podman.image, "command": ["true"], "helthcheck": 1}})
    assert answer.status == 0
    assert '"a": ignored unknown keys: helthcheck' in answer.stderr


SECRETS = {"SECRET": "planted-password", "KEY": "-----BEGIN-----\nplanted\n", "a.b": "planted #"}


@pytest.mark.tool("podman")
def test_environment_of_every_kind_arrives_and_is_on_no_disk(each_real, podman, tmp_path):
    config = {
        "a": {
            "image": podman.image,
            "detach": False,
            "environment": [f"{name}={value}" for name, value in SECRETS.items()],
            "command": ["env"],
        }
    }
    answer = each_real(config)
    assert all(f"{name}={value}\n" in answer.stdout for name, value in SECRETS.items())
    assert "planted" not in answer.log.replace(answer.stdout, "")
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "docker"]
    assert not [path for path in left if b"planted" in path.read_bytes()]


def test_no_environment_is_on_the_command_line(stub):
    """Every user can read /proc/PID/cmdline, and the engine's client lives as long as the pull."""
    config = {"a": {"image": "i", "environment": {**SECRETS, "x y": "planted"}}}
    assert stub(config).status == 0
    (call,) = [call for call in stub.calls() if call.startswith("run ")]
    assert "planted" not in call
    assert " --env=KEY " in call


def test_environment_without_a_name_is_reported_in_a_sentence(stub):
    answer = stub({"a": {"image": "i", "environment": ["=planted"]}})
    assert answer.status == 1
    assert "without a name" in answer.stderr
    assert "planted" not in answer.stderr


def test_nul_in_a_command_is_reported_in_a_sentence(stub):
    answer = stub({"a": {"image": "i", "command": ["a\0b"]}})
    assert answer.status == 1
    assert "NUL" in answer.stderr


@pytest.mark.defect("K6")
def test_volumes_from_is_the_option_that_engines_have(stub):
    config = {"a": {"image": "i", "volumes_from": ["b", "c"]}}
    assert stub(config).status == 0
    assert stub.calls()[-1].endswith(" --volumes-from=b --volumes-from=c i")


@pytest.mark.parametrize("key", ["run the migration", "-a", "_", "a/b"])
def test_key_of_a_command_is_only_a_label(stub, key):
    """As in heat-agents."""
    config = {key: {"action": "exec", "command": ["web", "ls", "-l"]}}
    assert stub(config).status == 0
    assert stub.calls()[-1] == "exec web ls -l"


def test_start_order_may_be_text(stub):
    """As in heat-agents, which sorts texts; here 10 comes after 9."""
    orders = {"c": "10", "b": "9", "a": None, "d": 11}
    config = {
        key: {"action": "exec", "command": f"web {key}", "start_order": order}
        for key, order in orders.items()
    }
    assert stub(config).status == 0
    assert [call[-1] for call in stub.calls() if call.startswith("exec")] == ["a", "b", "c", "d"]


@pytest.mark.defect("K6")
@pytest.mark.tool("podman")
def test_update_replaces_and_delete_removes(each_real, podman):
    """heat-agents' DELETE leaves the containers to a later pass."""
    old = {name: {"image": podman.image, "command": WAIT} for name in ("a", "b")}
    other = {"z": {"image": podman.image, "command": WAIT}}
    assert each_real(old, inputs=STACK).status == 0
    assert each_real(other, inputs={**STACK, "deploy_resource_name": "other"}).status == 0
    before = podman.inspect("a")["Id"]
    new = {"a": {"image": podman.image, "command": WAIT}}
    assert each_real(new, inputs=STACK, action="UPDATE").status == 0
    assert podman.names() == ["a", "z"]
    assert podman.inspect("a")["Id"] != before
    assert each_real(new, inputs=STACK, action="DELETE").status == 0
    assert podman.names() == ["z"]


@pytest.mark.tool("podman")
def test_update_to_an_empty_config_removes_the_containers(real, podman):
    """As in heat-agents, whose step finds the old config no longer in the list."""
    real({"a": {"image": podman.image, "command": WAIT}}, inputs=STACK)
    assert real({}, inputs=STACK, action="UPDATE").status == 0
    assert podman.names() == []


@pytest.mark.tool("podman")
def test_action_that_runs_containers_replaces_earlier_ones(real, podman):
    """As in heat-agents; a second copy would want the same ports."""
    config = {"a": {"image": podman.image, "command": WAIT}}
    for action, number in (("CREATE", 2), ("CREATE", 2), ("RESUME", 3)):
        id = f"c0ffee00-0000-4000-8000-00000000000{number}"
        assert real(config, inputs=STACK, action=action, id=id).status == 0
        assert podman.names() == ["a"]


@pytest.mark.tool("podman")
def test_replaced_deployment_removes_no_container_of_the_new_one(
    real, podman, clean_up, make_deployment, tmp_path
):
    """Heat makes the new one, of the same name, before it deletes the old one."""

    def listed(*deployments):
        (tmp_path / "heat-config").write_text(json.dumps(deployments))

    entry = {"image": podman.image, "command": WAIT}
    old = {"id": "0ld00000-0000-4000-8000-000000000001", "inputs": STACK}
    new = {"id": "12345678-0000-4000-8000-000000000002", "inputs": STACK}
    gone = {"id": "de1e7e00-0000-4000-8000-000000000003", "inputs": STACK, "action": "DELETE"}
    there = [make_deployment(group="docker-cmd", **each) for each in (old, new, gone)]
    listed(there[0])
    real({"a": entry}, **old)
    listed(*there[:2])
    real({"a": entry}, **new)
    assert podman.names() == ["a", "a-12345678"]
    listed(there[1], there[2])
    assert real({"a": entry}, **gone).status == 0
    assert podman.names() == ["a-12345678"]
    assert '"a-12345678" was renamed to "a"' in clean_up([there[1]], [there[1]])


@pytest.mark.tool("podman")
def test_containers_of_a_replaced_deployment_are_removed(real, podman, clean_up, make_deployment):
    """By default a deployment has no DELETE; its config only leaves the list."""
    entry = {"image": podman.image, "command": WAIT}
    old = {"id": "0ld00000-0000-4000-8000-000000000001", "inputs": STACK}
    new = {"id": "12345678-0000-4000-8000-000000000002", "inputs": STACK}
    there = [make_deployment(group="docker-cmd", **each) for each in (old, new)]
    real({"a": entry}, **old)
    clean_up(there, there)
    real({"b": entry}, **new)
    assert podman.names() == ["a", "b"]
    clean_up(there[1:], there[1:])
    assert podman.names() == ["b"]


@pytest.mark.tool("podman")
def test_config_of_another_group_has_no_containers(real, podman, clean_up, make_deployment):
    """As in heat-agents, which counts configs of the group docker-cmd only."""
    real({"a": {"image": podman.image, "command": WAIT}}, inputs=STACK)
    component = {"configs": [{"actions": ["CREATE"], "config": {}, "tool": "docker-cmd"}]}
    listed = [make_deployment(component, group="component", inputs=STACK)]
    clean_up(listed, listed)
    assert podman.names() == ["a"]
    listed = [make_deployment("", group="script", inputs=STACK)]
    clean_up(listed, listed)
    assert podman.names() == []


@pytest.mark.parametrize("action", ["CREATE", "DELETE"])
def test_clean_up_without_an_engine_removes_nothing(docker_cmd, action):
    """A stack whose server has no engine can be deleted."""
    config = {"a": {"image": "i"}} if action == "DELETE" else {}
    answer = docker_cmd(config, action=action, env={"HEAT_DOCKER_CMD": "/no/such/program"})
    assert answer.status == 0


@pytest.mark.tool("podman")
def test_suspend_keeps_the_containers(real, podman):
    real({"a": {"image": podman.image, "command": WAIT}}, inputs=STACK)
    answer = real(
        {"b": {"action": "exec", "command": "a echo suspending"}}, inputs=STACK, action="SUSPEND"
    )
    assert (answer.status, answer.stdout) == (0, "suspending\n")
    assert podman.names() == ["a"]


@pytest.mark.tool("podman")
def test_taken_name_gets_a_suffix_and_later_its_own_name(
    each_real, podman, clean_up, make_deployment
):
    podman.run("run", "-d", "--name", "a", podman.image, *WAIT)
    id = "c0ffee00-0000-4000-8000-000000000003"
    assert each_real({"a": {"image": podman.image, "command": WAIT}}, id=id).status == 0
    assert podman.names() == ["a", "a-c0ffee00"]
    podman.run("rm", "-f", "--time", "0", "a")
    listed = [make_deployment(group="docker-cmd", id=id)]
    assert '"a-c0ffee00" was renamed to "a"' in clean_up(listed, listed)
    assert podman.names() == ["a"]


@pytest.mark.defect("H17")
@pytest.mark.tool("podman")
def test_only_deployments_missing_from_heat_are_removed(real, podman, clean_up, make_deployment):
    """With heat-agents, an outage of Heat empties the list, and the containers are removed."""
    config = {"a": {"image": podman.image, "command": WAIT}}
    listed = [make_deployment(config, group="docker-cmd", inputs=STACK)]
    real(config, inputs=STACK)
    clean_up([], None)
    assert podman.names() == ["a"]
    clean_up([], [], source="heat_local")
    assert podman.names() == ["a"]
    clean_up([], listed)
    assert podman.names() == ["a"]
    pending = [make_deployment(config, group="docker-cmd", inputs=STACK, action="UPDATE")]
    for each in (listed, pending):
        clean_up(each, each)
        assert podman.names() == ["a"]
    assert '"a" was removed' in clean_up([], [])
    assert podman.names() == []


@pytest.mark.tool("podman")
def test_parallel_runs_keep_apart(each_real, podman):
    def one(number: int):
        config = {
            f"c{number}": {
                "image": podman.image,
                "detach": False,
                "environment": {"N": number},
                "command": ["sh", "-c", "echo $N"],
            }
        }
        return each_real(
            config,
            id=f"c0ffee00-0000-4000-8000-00000000001{number}",
            inputs={**STACK, "deploy_resource_name": f"r{number}"},
        )

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(one, range(4)))
    assert [answer.stdout for answer in answers] == ["0\n", "1\n", "2\n", "3\n"]
    assert podman.names() == ["c0", "c1", "c2", "c3"]
