"""The docker-compose hook and its clean-up, with real compose programs and containers."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from programs import completed, program

WAIT = ["sh", "-c", "trap exit TERM; sleep 300 & wait"]
STACK = {"deploy_stack_id": "stack/8f0c", "deploy_resource_name": "project"}


@pytest.fixture
def hook_environment(tmp_path: Path):
    """The environment that the hook and the clean-up share."""
    return {
        "HEAT_DOCKER_COMPOSE_WORKING": str(tmp_path / "work"),
        "HEAT_SHELL_CONFIG": str(tmp_path / "heat-config"),
    }


@pytest.fixture
def docker_compose(run_hook, make_deployment, hook_environment):
    """Run the hook on a config."""

    def run(config, *, env=None, **keywords):
        keywords.setdefault("name", "My Project")
        keywords.setdefault("inputs", STACK)
        return run_hook(
            "docker_compose.py",
            make_deployment(config, group="docker-compose", **keywords),
            env={**hook_environment, **(env or {})},
        )

    return run


@pytest.fixture(params=["docker compose", "docker-compose", "podman-compose"])
def compose(request, podman, hook_environment, base_system, tmp_path: Path):
    """Each compose program in turn, as the hook finds it on its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    if request.param == "podman-compose":
        program = shutil.which("podman-compose")
        if program is None:
            pytest.skip("podman-compose is not installed")
        hook_environment.update(podman.environment)
        (tools / "podman").symlink_to(podman.program)
        (tools / "podman-compose").symlink_to(program)
    else:
        hook_environment.update(request.getfixturevalue("docker_environment"))
        (tools / "docker").symlink_to(shutil.which("docker"))
        if request.param == "docker compose":
            plugins = Path(hook_environment["DOCKER_CONFIG"]) / "cli-plugins"
            plugins.mkdir(parents=True)
            (plugins / "docker-compose").symlink_to(request.getfixturevalue("compose_plugin"))
        else:
            program = shutil.which("docker-compose")
            if program is None:
                pytest.skip("docker-compose is not installed")
            (tools / "docker-compose").symlink_to(program)
    # PATH has this folder and the base system: no other compose program of the host.
    hook_environment["PATH"] = f"{tools}:{base_system}"
    return request.param


#: For what does not depend on the program: other tests start and stop services with each.
ONE_COMPOSE = pytest.mark.parametrize("compose", ["docker compose"], indirect=True)


@pytest.fixture
def clean_up(clean_up_of, hook_environment):
    """Run the step of os-refresh-config with these deployments in the list and from Heat."""
    return clean_up_of("docker-compose", hook_environment)


@pytest.fixture
def calls(tmp_path: Path, hook_environment):
    """Have the hook call a stub of compose; return a function that returns its calls.

    It checks the words only.
    """
    log = tmp_path / "calls"
    stub = program(tmp_path / "recorder", f'echo "$PWD $@" >>{log}')
    hook_environment["HEAT_DOCKER_COMPOSE_CMD"] = str(stub)
    return lambda: log.read_text().splitlines() if log.exists() else []


def service(podman, **more):
    return {"image": podman.image, "network_mode": "host", "command": WAIT, **more}


@pytest.mark.defect("K7")
def test_empty_config_and_delete_need_no_compose(docker_compose):
    """An empty config and DELETE crash heat-agents' hook."""
    env = {"HEAT_DOCKER_COMPOSE_CMD": "/no/such/program"}
    for config, action in (("", "CREATE"), ({}, "UPDATE"), (None, "CREATE"), ({"a": {}}, "DELETE")):
        answer = docker_compose(config, action=action, env=env)
        assert (answer.status, answer.stdout, answer.stderr) == (0, "", "")


def test_missing_compose_is_reported_in_a_sentence(docker_compose, tmp_path):
    answer = docker_compose({"services": {}}, env={"PATH": str(tmp_path)})
    assert answer.status == 127
    assert "heat-config-docker-compose" in answer.stderr


def test_podman_compose_that_hides_failures_is_refused(docker_compose, tmp_path):
    """The output of bookworm's 1.0.3; it exits with 0 whatever podman did."""
    program(tmp_path / "podman-compose", "echo 'podman-composer version  1.0.3'")
    answer = docker_compose({"services": {}}, env={"PATH": str(tmp_path)})
    assert answer.status == 127
    assert "too old" in answer.stderr


def test_chosen_command_that_is_missing_fails(docker_compose):
    answer = docker_compose({"services": {}}, env={"HEAT_DOCKER_COMPOSE_CMD": "/no/such/program"})
    assert answer.status == 127


@pytest.mark.parametrize(
    ("config", "inputs", "part"),
    [
        ([1], {}, "must be a map"),
        ("a: b\nc: [}", {}, "is not YAML (line 2)"),
        ({"web": "text"}, {}, 'service "web" must be a map'),
        ({"web": {}}, {"env_files": "no list"}, "env_files"),
        ({"web": {}}, {"env_files": [{"content": "x"}]}, "file_name"),
        (
            {"web": {"env_file": "../../x"}},
            {"env_files": [{"file_name": "../../x", "content": "x"}]},
            "is outside",
        ),
    ],
)
def test_malformed_config_is_reported_in_a_sentence(docker_compose, calls, config, inputs, part):
    answer = docker_compose(config, inputs={**STACK, **inputs})
    assert answer.status == 1
    assert part in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert calls() == []


def test_compose_is_called_with_project_and_file(docker_compose, calls, hook_environment, tmp_path):
    hook_environment["HEAT_DOCKER_COMPOSE_CMD"] += " words"
    assert docker_compose({"services": {}}).status == 0
    directory = tmp_path / "work/My_Project"
    assert calls() == [
        f"{directory} words -p my_project -f {directory}/docker-compose.yml "
        "up -d --no-build --remove-orphans"
    ]
    for path in (directory, directory / "docker-compose.yml"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("given", [None, "7"])
def test_busy_engine_may_take_longer_than_a_minute(docker_compose, tmp_path, given):
    """docker-compose 1.29 gives up after 60 s, as an emulated guest on a busy host has shown."""
    fake = program(tmp_path / "compose", 'echo "$COMPOSE_HTTP_TIMEOUT"')
    env = {"HEAT_DOCKER_COMPOSE_CMD": str(fake)}
    if given:
        env["COMPOSE_HTTP_TIMEOUT"] = given
    answer = docker_compose({"services": {}}, env=env)
    assert answer.stdout == f"{given or 3600}\n"


def test_hostile_name_stays_in_the_directory(docker_compose, calls, tmp_path):
    for name in ("../../escape", "/etc", "..", "", "a\nb", "ü/☃"):
        docker_compose({"services": {}}, name=name)
        inside = {path.parent for path in (tmp_path / "work").rglob("docker-compose.yml")}
        assert {path.parent for path in inside} == {tmp_path / "work"}


@pytest.mark.parametrize("form", ["list", "json", "python"])
def test_env_files_are_accepted_in_every_form(docker_compose, calls, tmp_path, form):
    files = [
        {"file_name": "./a.env", "content": "SECRET=planted-password\n"},
        {"file_name": "sub/b.env", "content": "ünïcode=☃\n"},
        {"file_name": "not-wanted.env", "content": "x"},
    ]
    given = {"list": files, "json": json.dumps(files), "python": repr(files)}[form]
    answer = docker_compose(
        {"web": {"image": "i", "env_file": ["a.env", "sub/b.env", "elsewhere.env"]}},
        inputs={**STACK, "env_files": given},
    )
    assert answer.status == 0
    assert "planted-password" not in answer.log
    directory = tmp_path / "work/My_Project"
    assert (directory / "a.env").read_text() == "SECRET=planted-password\n"
    assert (directory / "sub/b.env").read_text() == "ünïcode=☃\n"
    assert (directory / "a.env").stat().st_mode & 0o777 == 0o600
    assert not (directory / "not-wanted.env").exists()


def test_env_file_outside_is_readable_and_removed_with_the_project(docker_compose, calls, tmp_path):
    """heat-agents writes it as well; its directories are then root's alone, and it stays."""
    new, old = tmp_path / "etc/app/new.env", tmp_path / "old.env"
    old.write_text("before\n")
    config = {"web": {"image": "i", "env_file": [str(new), str(old)]}}
    files = [{"file_name": str(path), "content": "A=planted\n"} for path in (new, old)]
    for action in ("CREATE", "UPDATE"):
        answer = docker_compose(config, inputs={**STACK, "env_files": files}, action=action)
        assert answer.status == 0, answer.stderr
        assert new.read_text() == old.read_text() == "A=planted\n"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (new, new.parent, tmp_path / "etc")] == [
        0o600,
        0o755,
        0o755,
    ]
    assert docker_compose(config, action="DELETE").status == 0
    assert not new.exists()
    assert old.exists()


@pytest.mark.defect("K7")
def test_text_in_the_current_layout_is_passed_unchanged(docker_compose, calls, tmp_path):
    text = 'version: "3"\nservices:\n  web:\n    image: i\n    ports: [22:22]\n'
    docker_compose(text)
    assert (tmp_path / "work/My_Project/docker-compose.yml").read_text() == text


@pytest.mark.defect("K7")
def test_old_layout_is_converted(docker_compose, calls, tmp_path):
    docker_compose(
        {
            "version": "1",
            "web": {"image": "i", "net": "host", "volumes": ["data:/d", "/a:/b", "./c:/c"]},
            "log": {"build": ".", "dockerfile": "D", "log_driver": "x", "log_opt": {"a": "b"}},
            **PARTNERS,
        },
    )
    written = json.loads((tmp_path / "work/My_Project/docker-compose.yml").read_text())
    assert written == {
        "services": {
            "web": {
                "image": "i",
                "network_mode": "host",
                "volumes": ["data:/d", "/a:/b", "./c:/c"],
            },
            "log": {
                "build": {"context": ".", "dockerfile": "D"},
                "logging": {"driver": "x", "options": {"a": "b"}},
            },
            "side": {
                "image": "i",
                "network_mode": "service:web",
                "volumes": ["cache:/c", "/host:/h"],
                "volumes_from": ["web", "web:ro", "container:other", "container:x:ro"],
            },
            "guest": {"image": "i", "network_mode": "container:elsewhere"},
        },
        "volumes": {
            "data": {"name": "data"},
            "cache": {"name": "cache", "driver": "local"},
        },
    }


PARTNERS = {
    # "container:" and a plain volumes_from meant services and containers alike.
    "side": {
        "image": "i",
        "net": "container:web",
        "volumes": ["cache:/c", "/host:/h"],
        "volume_driver": "local",
        "volumes_from": ["web", "web:ro", "other", "container:x:ro"],
    },
    "guest": {"image": "i", "net": "container:elsewhere"},
}


@pytest.mark.tool("docker")
@pytest.mark.parametrize("program", ["docker compose", "docker-compose"])
def test_compose_accepts_the_converted_layout(docker_compose, calls, request, tmp_path, program):
    """Neither takes "volume_driver", nor "container:" for a service that has another name."""
    if program == "docker compose":
        command = str(request.getfixturevalue("compose_plugin"))
    else:
        command = shutil.which(program) or pytest.skip(f"{program} is not installed")
    config = {"web": {"image": "i"}, **PARTNERS}
    assert docker_compose(config).status == 0
    file = tmp_path / "work/My_Project/docker-compose.yml"
    words = [command, "-f", str(file), "config"]
    done = completed(words)
    assert done.returncode == 0, done.stderr
    assert "service:web" in done.stdout


def test_two_deployments_of_one_name_do_not_share_a_project(docker_compose, calls, tmp_path):
    for resource in ("one", "two", "one"):
        inputs = {**STACK, "deploy_resource_name": resource}
        docker_compose({"services": {}}, inputs=inputs)
    projects = [call.split("-p ")[1].split()[0] for call in calls()]
    assert projects[0] == projects[2] != projects[1]


def test_update_under_another_name_takes_the_old_project_down(docker_compose, calls, tmp_path):
    docker_compose({"services": {}}, name="config-x7")
    docker_compose({"services": {}}, name="config-y8", action="UPDATE")
    assert ["down" in call for call in calls()] == [False, True, False]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["config-y8"]


def listed_as(tmp_path, *deployments):
    (tmp_path / "heat-config").write_text(json.dumps(deployments))


def test_replaced_deployment_keeps_the_new_ones_project(
    docker_compose, calls, make_deployment, tmp_path
):
    """Heat makes the new one, of the same name, before it deletes the old one."""
    old, new, gone = (
        make_deployment({}, group="docker-compose", inputs=STACK, id=f"{n}-000") for n in "123"
    )
    listed_as(tmp_path, old)
    docker_compose({"services": {}}, id="1-000")
    listed_as(tmp_path, old, new)
    docker_compose({"services": {}}, id="2-000")
    listed_as(tmp_path, new, gone)
    docker_compose({"services": {}}, id="3-000", action="DELETE")
    assert ["down" in call for call in calls()] == [False, False]
    listed_as(tmp_path, gone)
    docker_compose({"services": {}}, id="4-000", action="DELETE")
    assert "down" in calls()[-1]


def test_project_of_a_replaced_deployment_is_taken_down(
    docker_compose, calls, clean_up, make_deployment, tmp_path
):
    """A deployment without a name of its own gets a new one with its place in Heat."""
    old, new = (
        make_deployment({}, group="docker-compose", inputs=STACK, id=f"{n}-000") for n in "12"
    )
    listed_as(tmp_path, old)
    docker_compose({"services": {}}, id="1-000", name="config-x7")
    listed_as(tmp_path, old, new)
    docker_compose({"services": {}}, id="2-000", name="config-y8")
    assert len(calls()) == 2
    assert '"config-x7" was removed' in clean_up([new], [new])
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["config-y8"]


@pytest.fixture
def of_heat_agents(podman, compose, hook_environment, tmp_path):
    """A project as heat-agents leaves it; compose 1.4 dropped the - from the name."""
    project = "my-app" if compose == "docker-compose" else "myapp"
    if compose == "podman-compose":
        pytest.skip("heat-agents had no podman-compose")
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed")
    directory = tmp_path / "work" / "my-app"
    directory.mkdir(parents=True)
    file = directory / "docker-compose.yml"
    file.write_text(f"web:\n  image: {podman.image}\n  net: host\n  command: {WAIT}\n")
    words = [program, "-p", project, "-f", str(file), "up", "-d", "--no-build"]
    subprocess.run(words, env=hook_environment, check=True, capture_output=True)
    assert len(podman.names()) == 1
    return directory


@pytest.mark.tool("podman")
@pytest.mark.tool("docker")
def test_project_of_heat_agents_is_taken_over(docker_compose, podman, of_heat_agents):
    """Found by the deployment's name, as in heat-agents; today's compose refuses its file."""
    (before,) = podman.names()
    config = {"web": {"image": podman.image, "net": "host", "command": WAIT}}
    answer = docker_compose("", name="my-application", action="DELETE")
    assert podman.names() == [before]
    answer = docker_compose(config, name="my-app", action="UPDATE")
    assert answer.status == 0, answer.stderr
    (name,) = podman.names()
    assert name.replace("-", "_") == "my_app_web_1"
    assert docker_compose(config, name="my-app", action="DELETE").status == 0
    assert podman.names() == []


def test_project_of_heat_agents_takes_no_other_down(docker_compose, calls, tmp_path):
    """Either of "my-app" and "myapp" may have been called myapp."""
    for name in ("my-app", "myapp"):
        (tmp_path / "work" / name).mkdir(parents=True)
        (tmp_path / "work" / name / "docker-compose.yml").write_text("{}")
    for name in ("my-app", "myapp"):
        assert docker_compose({}, name=name, action="DELETE").status == 0
    assert [call.split("-p ")[1].split()[0] for call in calls()] == ["my-app", "myapp"]
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.tool("podman")
@pytest.mark.tool("docker")
@ONE_COMPOSE
def test_project_of_heat_agents_is_removed_with_its_deployment(
    clean_up, podman, of_heat_agents, make_deployment
):
    listed = [make_deployment({}, group="docker-compose", name="my-app")]
    clean_up(listed, listed)
    clean_up([], None)
    assert len(podman.names()) == 1
    assert "was removed" in clean_up([], [])
    assert podman.names() == []
    assert not of_heat_agents.exists()


@pytest.mark.defect("K7")
@pytest.mark.tool("podman")
@pytest.mark.tool("docker")
def test_project_is_brought_up_updated_and_deleted(docker_compose, podman, compose, tmp_path):
    """First in the old layout with a file of variables, and then in the current one."""
    command = [*WAIT[:2], 'echo "$$GREETING"; ' + WAIT[2]]
    old = {"image": podman.image, "net": "host", "command": command}
    files = [{"file_name": "web.env", "content": "GREETING=grüß dich ☃\n"}]
    answer = docker_compose(
        {"web": {**old, "env_file": "web.env"}, "db": old},
        inputs={**STACK, "env_files": repr(files)},
    )
    assert answer.status == 0, answer.stderr
    (db, web) = (name for name in podman.names() if "pod" not in name)
    assert [name.replace("-", "_") for name in (db, web)] == ["my_project_db_1", "my_project_web_1"]
    assert podman.run("logs", web).stdout == "grüß dich ☃\n"
    assert all(podman.inspect(name)["State"]["Running"] for name in podman.names())
    config = {"services": {"web": service(podman)}}
    answer = docker_compose(config, action="UPDATE")
    assert answer.status == 0, answer.stderr
    assert len([name for name in podman.names() if "web" in name or "db" in name]) == 1
    answer = docker_compose(config, action="DELETE")
    assert answer.status == 0, answer.stderr
    assert podman.names() == []
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.tool("podman")
@pytest.mark.tool("docker")
def test_unknown_image_fails(docker_compose, podman, compose):
    config = {"services": {"web": service(podman, image="localhost/no-such-image")}}
    answer = docker_compose(config)
    assert answer.status != 0
    assert "no-such-image" in answer.stdout + answer.stderr


@pytest.mark.defect("H17")
@pytest.mark.tool("podman")
@pytest.mark.tool("docker")
@ONE_COMPOSE
def test_only_deployments_missing_from_heat_are_taken_down(
    docker_compose, podman, compose, clean_up, make_deployment
):
    listed = [make_deployment({}, group="docker-compose", inputs=STACK)]
    docker_compose({"services": {"web": service(podman)}})
    running = podman.names()
    clean_up([], None)
    clean_up([], listed)
    clean_up(listed, listed)
    assert podman.names() == running != []
    assert '"my_project" was removed' in clean_up([], [])
    assert podman.names() == []
