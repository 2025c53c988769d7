"""The containers of group "docker-cmd", seen through the command line of docker or podman."""

from __future__ import annotations

import contextlib
import json
import os

from heat_config import files, hook, tools

from . import live_deployments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

GROUP = "docker-cmd"
MANAGED = "managed_by=docker-cmd"


class Container:
    """One container that a docker-cmd deployment made, according to its *labels*."""

    def __init__(self, document: dict[str, Any]) -> None:
        config = document.get("Config") or {}
        self.id = document.get("Id") or ""
        # docker's names begin with a slash.
        self.name = (document.get("Name") or "").lstrip("/")
        self.labels = config.get("Labels") or {}

    @property
    def config_id(self) -> str:
        """The id of the config that it was made from."""
        return str(self.labels.get("config_id", ""))

    @property
    def wanted_name(self) -> str:
        """The name that the template gives it."""
        return str(self.labels.get("container_name", ""))

    @property
    def deployment(self) -> str:
        """The identity of its deployment, as in live_deployments.py."""
        return live_deployments.identity(
            self.labels.get("deploy_stack_id", ""),
            self.labels.get("deploy_resource_name", ""),
            self.config_id,
        )


class Engine:
    """docker or podman: the program of HEAT_DOCKER_CMD, else the first one installed."""

    def __init__(self) -> None:
        self.program = tools.find(
            "A container engine",
            ["docker", "podman"],
            setting="HEAT_DOCKER_CMD",
            hint="Build the image with the element heat-config-docker-cmd.",
        )

    def run(self, *arguments: str, variables: Mapping[str, str] | None = None) -> hook.Result:
        """Run the engine and return the hook.Result; its output goes to the deployment's log.

        variables: added to the engine's own environment.
        """
        if any("\0" in argument for argument in arguments):
            raise hook.HookError("A container's entry holds a NUL, which no command can take.")
        environment = {**tools.environment(), **(variables or {})}
        return hook.run([self.program, *arguments], env=environment)

    def ask(self, *arguments: str) -> str:
        """Return the engine's answer to a query; raises HookError if it fails."""
        result = hook.run([self.program, *arguments], env=tools.environment(), quiet=True)
        if result.status != 0:
            name, reason = os.path.basename(self.program), result.stderr.strip()
            raise hook.HookError(
                f'"{name} {arguments[0]}" failed with status {result.status}: '
                + (reason or "it gave no reason"),
                result.status,
            )
        return result.stdout

    def names(self) -> set[str]:
        """Return the names of all containers, ours or not."""
        # docker prints the aliases of a linked container behind its name, with commas.
        return set(self.ask("ps", "--all", "--format", "{{.Names}}").replace(",", "\n").split())

    def managed(self) -> list[Container]:
        """Return the Containers that docker-cmd deployments made, running or not."""
        ids = self.ask(
            "ps", "--all", "--quiet", "--no-trunc", "--filter", "label=" + MANAGED
        ).split()
        if not ids:
            return []
        # A container may vanish between the two calls; the answer about the others still counts.
        inspected = hook.run(
            [self.program, "inspect", "--type", "container", *ids],
            env=tools.environment(),
            quiet=True,
        )
        try:
            documents = json.loads(inspected.stdout)
        except ValueError:
            raise hook.HookError(
                f'"{os.path.basename(self.program)} inspect" did not answer with JSON: '
                f"{inspected.stderr.strip()}"
            ) from None
        return [Container(document) for document in documents if isinstance(document, dict)]

    def remove(self, containers: Iterable[Container]) -> None:
        """Remove the containers, running or not; raises HookError if one stays."""
        if containers:
            self.ask("rm", "--force", *(container.id for container in containers))


def is_installed() -> bool:
    """Return whether there is an engine; without one there are no containers."""
    try:
        Engine()
    except hook.HookError:
        return False
    return True


@contextlib.contextmanager
def unnamed_file(text: str) -> Iterator[str]:
    """Yield the path of a file that holds *text* and is on no disk."""
    descriptor = os.memfd_create("environment")
    try:
        files.write_all(descriptor, text.encode("utf-8", "replace"))
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def clean(engine: Engine) -> list[str]:
    """Remove containers of deployments that are gone, and give the others their own names.

    Returns a sentence for each change.
    """
    done = []
    stay = engine.managed()
    live = live_deployments.read(GROUP)
    if live is not None:
        present = {(c.deployment, c.config_id) for c in stay}
        gone = [c for c in stay if live.is_gone(c.deployment, c.config_id, present)]
        engine.remove(gone)
        done += [f'container "{c.name}" was removed: its deployment is gone' for c in gone]
        stay = [container for container in stay if container not in gone]
    # Their names were taken when they started; see _free_name() in docker_cmd.py.
    late = [c for c in stay if c.wanted_name and c.wanted_name != c.name]
    names = engine.names() if late else set()
    for container in late:
        if container.wanted_name not in names:
            engine.ask("rename", container.id, container.wanted_name)
            names.add(container.wanted_name)
            done.append(f'container "{container.name}" was renamed to "{container.wanted_name}"')
    return done
