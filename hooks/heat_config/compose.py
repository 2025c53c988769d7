"""The projects of group "docker-compose": one directory each, and the command that runs them."""

import json
import os
import re
import shlex
import shutil
import zlib

from . import files, hook, standing, tools, values

WORKING = "/var/lib/heat-config/heat-config-docker-compose"
FILE = "docker-compose.yml"
NOTE = ".deployment.json"

# How compose is called, the best first. "podman compose" needs podman 4.7, and tells a
# docker-compose, which it calls, where podman listens.
PODMAN_COMPOSE = ("podman-compose",)
COMMANDS = (("docker", "compose"), ("docker-compose",), ("podman", "compose"), PODMAN_COMPOSE)
COMMANDS_OF_PODMAN = (("podman", "compose"), PODMAN_COMPOSE, ("docker-compose",))
PODMAN_SOCKET = "/run/podman/podman.sock"
TOO_OLD = re.compile(r"podman-composer? version:? *(0|1\.0)\.")

TOP_LEVEL = ("services", "include")
"""The keys by which a compose file is told from the old layout, with the services at the top."""


class Project:
    """A directory with a compose file, and the deployment it belongs to."""

    def __init__(self, directory, deployment):
        self.directory = directory
        self.deployment = deployment
        self.name = project_name(os.path.basename(directory))
        self.file = os.path.join(directory, FILE)

    @property
    def is_written(self):
        """True when there is a compose file, so that there may be containers."""
        return os.path.exists(self.file)

    def prepare(self):
        """Make the private directory, with a note of the deployment."""
        tools.private_directory(self.directory)
        note = values.encode({"deployment": self.deployment})
        hook.write_file(os.path.join(self.directory, NOTE), note)

    def run(self, command, *arguments):
        """Run a compose command for this project and return the hook.Result."""
        return hook.run(
            [*command, "-p", self.name, "-f", self.file, *arguments],
            env=environment(),
            cwd=self.directory,
        )

    def bring_up(self, command):
        """Start the services, and stop those that the file no longer has. Returns the Result."""
        return self.run(command, "up", "-d", "--no-build", "--remove-orphans")

    def take_down(self, command):
        """Stop and remove what runs, then the directory; named volumes stay. Returns the Result."""
        result = hook.Result(0, "", "")
        if self.is_written:
            result = self.run(command, "down", "--remove-orphans")
        if result.status == 0:
            tools.remove_tree(self.directory)
        return result


def working():
    """Return the directory that holds the projects' directories."""
    return os.environ.get("HEAT_DOCKER_COMPOSE_WORKING") or WORKING


def projects(directory):
    """Return the Projects that stand in *directory*; what has no note is not ours to touch."""
    found = []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        path = os.path.join(directory, name)
        data = files.read_bounded(os.path.join(path, NOTE), 1 << 20)
        try:
            owner = json.loads(data or b"")["deployment"]
        except (ValueError, KeyError, TypeError):
            continue
        found.append(Project(path, owner))
    return found


def project_for(directory, deployment, present):
    """Return the Project of this hook.Deployment, which may not stand yet.

    Its directory has the deployment's name, as with heat-agents; when another deployment has that
    name already, a suffix tells them apart.
    """
    owner = standing.of_deployment(deployment)
    name = re.sub(r"[^0-9A-Za-z_.-]", "_", deployment.name).lstrip(".-")[:100] or "deployment"
    for project in present:
        same_name = project_name(os.path.basename(project.directory)) == project_name(name)
        if same_name and project.deployment != owner:
            name = "%s-%08x" % (name, zlib.crc32(owner.encode()))
            break
    return Project(os.path.join(directory, name), owner)


def project_name(name):
    """Return *name* as compose allows it: small letters, digits, - and _, a letter first."""
    plain = re.sub(r"[^0-9a-z_-]", "", name.lower()).lstrip("-_")
    return plain or "heat"


def environment():
    """Return the environment for compose; without docker, docker-compose is sent to podman."""
    made = tools.environment()
    if "DOCKER_HOST" not in made and not shutil.which("docker") and os.path.exists(PODMAN_SOCKET):
        made["DOCKER_HOST"] = "unix://" + PODMAN_SOCKET
    return made


def find_command():
    """Return the words that call compose: HEAT_DOCKER_COMPOSE_CMD, else the first that works."""
    chosen = os.environ.get("HEAT_DOCKER_COMPOSE_CMD")
    if chosen:
        return shlex.split(chosen)
    commands = COMMANDS if shutil.which("docker") else COMMANDS_OF_PODMAN
    old = ""
    for words in commands:
        said = hook.run([*words, "version"], env=environment(), quiet=True, timeout=60)
        if words == PODMAN_COMPOSE and TOO_OLD.search(said.stdout + said.stderr):
            old = " podman-compose is too old: before 1.1 it reports success when services fail."
        elif said.status == 0:
            return list(words)
    raise hook.HookError(
        "Compose is not installed on this server: none of %s works.%s Build the image with the "
        "element heat-config-docker-compose."
        % (", ".join('"%s"' % " ".join(words) for words in commands), old),
        127,
    )


def modern(config):
    """Return a compose file of today from one of the first layout, which had no "services"."""
    services, volumes = {}, {}
    for name, entry in config.items():
        if name == "version":
            continue
        if not isinstance(entry, dict):
            raise hook.HookError('The service "%s" must be a map.' % values.clean(name))
        service = dict(entry)
        if "net" in service:
            service["network_mode"] = service.pop("net")
        if "log_driver" in service:
            service["logging"] = {"driver": service.pop("log_driver")}
            if "log_opt" in service:
                service["logging"]["options"] = service.pop("log_opt")
        if "dockerfile" in service and isinstance(service.get("build"), str):
            service["build"] = {
                "context": service["build"],
                "dockerfile": service.pop("dockerfile"),
            }
        services[name] = service
        for volume in service.get("volumes") or ():
            source = volume.split(":")[0] if isinstance(volume, str) and ":" in volume else ""
            if source and source[0] not in "/.~$":
                # Was not prefixed with the project, and was not declared.
                volumes[source] = {"name": source}
    return {"services": services, **({"volumes": volumes} if volumes else {})}


def clean():
    """Take down the projects of deployments that are gone; return a sentence for each."""
    known = standing.deployments()
    gone = [p for p in projects(working()) if known is not None and p.deployment not in known]
    command = find_command() if gone else []
    done = []
    for project in gone:
        result = project.take_down(command)
        how = "is removed: its deployment is gone"
        if result.status != 0:
            how = "could not be taken down (status %d)" % result.status
        done.append('project "%s" %s' % (project.name, how))
    return done
