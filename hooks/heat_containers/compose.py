"""The projects of group "docker-compose": one directory each, and the compose command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import zlib

from heat_config import files, hook, tools, values

from . import live_deployments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .live_deployments import LiveDeployments, Present

GROUP = "docker-compose"
WORKING = "/var/lib/heat-config/heat-config-docker-compose"
FILE = "docker-compose.yml"
NOTE = ".deployment.json"
EMPTY = '{"services":{"none":{"image":"none"}}}'

# The commands of compose, the best first. "podman compose" needs podman 4.7; it calls a
# docker-compose and passes it podman's address.
PODMAN_COMPOSE = ("podman-compose",)
COMMANDS = (("docker", "compose"), ("docker-compose",), ("podman", "compose"), PODMAN_COMPOSE)
COMMANDS_OF_PODMAN = (("podman", "compose"), PODMAN_COMPOSE, ("docker-compose",))
PODMAN_SOCKET = "/run/podman/podman.sock"
PATIENCE = "3600"
#: Versions that report success when services fail.
TOO_OLD = re.compile(r"podman-composer? version:? *(0|1\.0)\.")

#: Keys that distinguish a compose file from the old layout, with the services at the top.
TOP_LEVEL = ("services", "include")


class Project:
    """A directory with a compose file, and the deployment it belongs to."""

    def __init__(self, directory: str, note: dict[str, Any]) -> None:
        self.directory = directory
        self.deployment: str | None = note["deployment"]
        self.config_id: str | None = note.get("config")
        self.outside: list[str] = note.get("files") or []
        self.name = project_name(os.path.basename(directory))
        self.file = os.path.join(directory, FILE)

    def is_gone(self, live: LiveDeployments, present: Present) -> bool:
        """Return whether its deployment is gone; both arguments are as in live_deployments.py."""
        return live.is_gone(self.deployment, self.config_id, present)

    def is_of(self, deployment: hook.Deployment) -> bool:
        """Return whether the hook.Deployment may replace this project or take it down.

        Not when it belongs to another config of the same name: when Heat replaces a deployment,
        the new one is already up while the old one is deleted.
        """
        mine = self.deployment == live_deployments.of_deployment(deployment)
        if not mine or self.config_id in (None, deployment.id):
            return mine
        return self.config_id not in live_deployments.config_ids()

    def prepare(self, config_id: str) -> None:
        """Make the private directory, with a note of the deployment and its config."""
        tools.private_directory(self.directory)
        self.config_id = config_id
        # Before any service starts: a run that is killed then leaves a project that can be found.
        self._write_note()

    def write_env_file(self, name: str, content: str) -> None:
        """Write an env file of a service; outside of the directory only by an absolute path."""
        path = os.path.join(self.directory, name)
        if os.path.isabs(name):
            if path not in self.outside and not os.path.lexists(path):
                self.outside.append(path)
                self._write_note()
            tools.shared_directory(os.path.dirname(path))
        else:
            tools.private_directory(os.path.dirname(path))
        hook.write_file(path, content)

    def _write_note(self) -> None:
        note = {"deployment": self.deployment, "config": self.config_id, "files": self.outside}
        hook.write_file(os.path.join(self.directory, NOTE), values.encode(note))

    def run(self, command: list[str], *arguments: str) -> hook.Result:
        """Run a compose command for this project and return the hook.Result."""
        return run(command, self.name, self.file, *arguments)

    def bring_up(self, command: list[str]) -> hook.Result:
        """Start the services, and stop those that were removed from the file.

        Returns the Result.
        """
        return self.run(command, "up", "-d", "--no-build", "--remove-orphans")

    def take_down(self, command: list[str]) -> hook.Result:
        """Stop and remove the containers, then the directory; named volumes stay.

        Returns the Result.
        """
        result = hook.Result(0, "", "")
        if os.path.exists(self.file):  # else no service was ever started
            result = self.run(command, "down", "--remove-orphans")
        if result.status == 0:
            for path in self.outside:
                files.remove(path)
            tools.remove_tree(self.directory)
        return result


class Inherited(Project):
    """A project that heat-agents started: a directory with the deployment's name, without a note.

    Its file may be of a layout that today's compose refuses, and its containers may have either of
    two project names.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(directory, {"deployment": None})
        self.owner = os.path.basename(directory)
        # compose dropped - and _ from the name of a project until 1.20.
        self.names = list(dict.fromkeys((re.sub("[-_]", "", self.name), self.name)))

    def is_gone(self, live: LiveDeployments, _present: Present) -> bool:
        """Return whether no deployment has its name, the criterion of heat-agents."""
        return self.owner not in live.names

    def is_of(self, deployment: hook.Deployment) -> bool:
        """Return whether the hook.Deployment has its name."""
        return self.owner == deployment.name

    def take_down(self, command: list[str]) -> hook.Result:
        """Stop and remove the containers under either name, then the directory."""
        stand_in = os.path.join(self.directory, ".down.yml")
        # The one service of this file has never run, so all containers of the project are orphans.
        hook.write_file(stand_in, EMPTY)
        stdout, stderr = "", ""
        for name in self.names:
            result = run(command, name, stand_in, "down", "--remove-orphans")
            stdout, stderr = stdout + result.stdout, stderr + result.stderr
            if result.status != 0:
                return hook.Result(result.status, stdout, stderr)
        tools.remove_tree(self.directory)
        return hook.Result(0, stdout, stderr)


def run(command: list[str], name: str, file: str, *arguments: str) -> hook.Result:
    """Run a compose command for the project *name* of *file* and return the hook.Result."""
    return hook.run(
        [*command, "-p", name, "-f", file, *arguments],
        env=environment(),
        cwd=os.path.dirname(file),
    )


def working() -> str:
    """Return the directory that holds the projects' directories."""
    return os.environ.get("HEAT_DOCKER_COMPOSE_WORKING") or WORKING


def projects(directory: str) -> list[Project]:
    """Return the Projects in *directory*, including those of heat-agents."""
    present = []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        path = os.path.join(directory, name)
        data = files.read_bounded(os.path.join(path, NOTE), 1 << 20)
        if data is not None:
            # A damaged note does not say whose the project is, so nothing is done to it.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                present.append(Project(path, json.loads(data)))
        elif os.path.isfile(os.path.join(path, FILE)):
            present.append(Inherited(path))
    for project in present:
        if isinstance(project, Inherited):  # must not take down another deployment's project
            others = {other.name for other in present if other is not project}
            project.names = [name for name in project.names if name not in others]
    return present


def project_for(directory: str, deployment: hook.Deployment, present: list[Project]) -> Project:
    """Return the Project of this hook.Deployment, which may not exist yet.

    Its directory has the deployment's name, as with heat-agents; if another deployment already
    has that name, a suffix distinguishes them.
    """
    owner = live_deployments.of_deployment(deployment)
    name = re.sub(r"[^0-9A-Za-z_.-]", "_", deployment.name).lstrip(".-")[:100] or "deployment"
    for project in present:
        same_name = project_name(os.path.basename(project.directory)) == project_name(name)
        if same_name and project.deployment != owner and not project.is_of(deployment):
            # A short suffix that stays the same; nothing secret depends on it.
            name = f"{name}-{zlib.crc32(owner.encode()):08x}"
            break
    directory = os.path.join(directory, name)
    for project in present:
        if project.directory == directory and project.deployment == owner:
            return project
    return Project(directory, {"deployment": owner})


def project_name(name: str) -> str:
    """Return *name* as compose allows it: small letters, digits, - and _, a letter first."""
    plain = re.sub(r"[^0-9a-z_-]", "", name.lower()).lstrip("-_")
    return plain or "heat"


def environment() -> dict[str, str]:
    """Return the environment for compose; without docker, docker-compose uses podman."""
    made = tools.environment()
    # docker-compose 1.29 gives up when the engine, busy with the same work, does not answer for a
    # minute. The runner decides how long a hook may run.
    made.setdefault("COMPOSE_HTTP_TIMEOUT", PATIENCE)
    if "DOCKER_HOST" not in made and not shutil.which("docker") and os.path.exists(PODMAN_SOCKET):
        made["DOCKER_HOST"] = "unix://" + PODMAN_SOCKET
    return made


def find_command() -> list[str]:
    """Return the words that call compose: HEAT_DOCKER_COMPOSE_CMD, else the first that works."""
    chosen = os.environ.get("HEAT_DOCKER_COMPOSE_CMD")
    if chosen:
        return shlex.split(chosen)
    commands = COMMANDS if shutil.which("docker") else COMMANDS_OF_PODMAN
    old = ""
    for words in commands:
        version = hook.run([*words, "version"], env=environment(), quiet=True, timeout=60)
        if words == PODMAN_COMPOSE and TOO_OLD.search(version.stdout + version.stderr):
            old = " podman-compose is too old: before 1.1 it reports success when services fail."
        elif version.status == 0:
            return list(words)
    tried = ", ".join(f'"{name}"' for name in map(" ".join, commands))
    raise hook.HookError(
        f"Compose is not installed on this server: none of {tried} works.{old} Build the image "
        "with the element heat-config-docker-compose.",
        127,
    )


def modern(config: dict[str, Any]) -> dict[str, Any]:
    """Return a current compose file for one of the first layout, which had no "services"."""
    services, volumes = {}, {}
    names = [name for name in config if name != "version"]
    for name in names:
        if not isinstance(config[name], dict):
            raise hook.HookError(f'The service "{values.clean(name)}" must be a map.')
        service = dict(config[name])
        services[name] = service
        driver = service.pop("volume_driver", None)
        for volume in service.get("volumes") or ():
            source = volume.split(":")[0] if isinstance(volume, str) and ":" in volume else ""
            if source and source[0] not in "/.~$":
                # In the old layout it had no prefix of the project, and was not declared.
                volumes[source] = {"name": source, **({"driver": driver} if driver else {})}
        _modernize(service, names)
    return {"services": services, **({"volumes": volumes} if volumes else {})}


def _modernize(service: dict[str, Any], names: list[str]) -> None:
    """Rename the keys of a *service* of the first layout to the current ones, in place."""
    if "net" in service:
        service["network_mode"] = _network(service.pop("net"), names)
    if isinstance(service.get("volumes_from"), list):
        service["volumes_from"] = [_owner(item, names) for item in service["volumes_from"]]
    if "log_driver" in service:
        service["logging"] = {"driver": service.pop("log_driver")}
    if "log_opt" in service:
        service.setdefault("logging", {})["options"] = service.pop("log_opt")
    if "dockerfile" in service and isinstance(service.get("build"), str):
        service["build"] = {
            "context": service["build"],
            "dockerfile": service.pop("dockerfile"),
        }


def _network(net: Any, names: list[str]) -> Any:
    """Return a ``network_mode``: "container:" also meant the services of the file."""
    kind, colon, name = net.partition(":") if isinstance(net, str) else (net, "", "")
    return "service:" + name if (kind, colon) == ("container", ":") and name in names else net


def _owner(item: Any, names: list[str]) -> Any:
    """Return an entry of ``volumes_from``; a name other than a service's meant a container."""
    if not isinstance(item, str) or item.split(":")[0] in (*names, "container"):
        return item
    return "container:" + item


def clean() -> list[str]:
    """Take down the projects of deployments that are gone; return a sentence for each."""
    live = live_deployments.read(GROUP)
    there = projects(working())
    present = {(project.deployment, project.config_id) for project in there}
    gone = [p for p in there if live is not None and p.is_gone(live, present)]
    # compose may be missing where nothing is to be taken down.
    command = find_command() if gone else []
    done = []
    for project in gone:
        result = project.take_down(command)
        how = "was removed: its deployment is gone"
        if result.status != 0:
            how = f"could not be taken down (status {result.status})"
        done.append(f'project "{project.name}" {how}')
    return done
