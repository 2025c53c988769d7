"""The embedded cloud as a remote one: served over HTTP, its guests played."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tiny_disk

# The helper modules beside the tests are imported by name.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "cloud"))
sys.path.insert(0, str(Path(__file__).parent))

import openstack as sdk
from cases import written
from hotplate_command import default_signals
from played_guest import MEMORY_MIB, Guest, PlayedMachine, _choose

from hotplate.cli import main
from hotplate.elsewhere import following, hosts, leftovers
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.settings import Settings
from hotplate.testbed import compute, qemu_maker
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import Deadline, retry


class PlayedServer(PlayedMachine):
    """A played guest with a readable console."""

    written: dict[str, list[str]] = {}

    def console_says(self, *lines: str) -> None:
        super().console_says(*lines)
        self.written.setdefault(self.server_id, []).extend(lines)


@dataclass
class SomeCloud:
    """A cloud, and a user with its ``clouds.yaml``.

    :param roles: the behaviour of the guests, by the names of their servers.
    """

    testbed: Testbed
    folder: Path
    roles: dict[str, Guest] = field(default_factory=dict)
    boots: int = 0

    def role(self, folder: str) -> Guest:
        """Return a guest's behaviour; the folder of a second server of a name ends in a number."""
        return self.roles.get(re.sub(r"-\d+$", "", folder), Guest())

    def reboot(self) -> None:
        """Count the reboots: a played guest has no button."""
        self.boots += 1

    def keys(self) -> set[str]:
        """Return the public keys that Nova gives to the guests."""
        servers = self.testbed.cloud.servers.all()
        lines = [line for each in servers for line in each.spec.public_keys.values()]
        return {line.split()[1] for line in lines}

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("OS_")},
            "OS_CLIENT_CONFIG_FILE": str(self.folder / "clouds.yaml"),
            "HOTPLATE_CACHE": str(self.folder / "cache"),
        }

    def start(self, *words: object, cloud: str = "hotplate") -> subprocess.Popen[str]:
        """Start ``hotplate test --os-cloud``."""
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "hotplate", "test", "--os-cloud", cloud),
                *map(str, words),
            ],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
        )

    def run(self, *words: object, cloud: str = "hotplate") -> subprocess.CompletedProcess[str]:
        """Run it to its end, in this process: its modules are already imported."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(["test", "--os-cloud", cloud, *map(str, words)])
        done = subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())
        print(done.stdout, done.stderr)
        return done

    def try_it(self, *words: object, cloud: str = "hotplate") -> subprocess.CompletedProcess[str]:
        """Test the image in this folder, with the usual template unless the words name one."""
        template = () if "-t" in words else ("-t", written(self.folder))
        return self.run("played.raw", "--patience", "20", *template, *words, cloud=cloud)

    def verdict(self) -> dict[str, Any]:
        return json.loads((self.folder / "artifacts" / "last" / "verdict.json").read_text())

    def what_there_is(self) -> dict[str, list[str]]:
        """Return everything in the project, by its kind."""
        cloud = self.testbed.cloud
        with sdk.connect(load_envvars=False, **self.login()) as openstack:
            listed = {
                "stacks": [each.id for each in cloud.heat().stacks.list(show_nested=True)],
                "servers": [each.id for each in openstack.compute.servers()],
                "key pairs": [each.name for each in openstack.compute.keypairs()],
                "images": [each.id for each in openstack.image.images()],
                "networks": [each.id for each in openstack.network.networks()],
                "ports": [each.id for each in openstack.network.ports()],
                "software configs": [each.id for each in cloud.heat().software_configs.list()],
            }
        return {kind: sorted(each) for kind, each in listed.items()}

    def login(self) -> dict[str, Any]:
        import yaml

        return yaml.safe_load((self.folder / "clouds.yaml").read_text())["clouds"]["hotplate"]


@pytest.fixture(scope="module")
def some_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SomeCloud]:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "own").mkdir()
    image = Image.open(tiny_disk.make(folder / "played.raw"))
    given = {
        "memory": MEMORY_MIB,
        "accelerator": "tcg",
        "wiring": "namespace",
        "cache": folder / "own" / "cache",
    }
    settings = Settings.load(given, environ={}, directory=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qemu_maker, "QemuMachine", PlayedServer)
        patch.setattr(qemu_maker.wiring, "choose", _choose)
        # This cloud is quicker than others.
        patch.setattr(following, "PAUSE_SECONDS", 0.1)
        patch.setattr(following, "MAX_PAUSE", 0.3)
        for module in (hosts, leftovers):
            patch.setattr(module, "retry", _retry_soon)
        patch.setattr(
            compute.LocalCompute,
            "console",
            lambda _, server: "".join(f"{each}\n" for each in PlayedServer.written.get(server, ())),
        )
        with Testbed(
            image, settings=settings, directory=folder / "own", events=EventLog()
        ) as testbed:
            made = SomeCloud(testbed, folder)
            patch.setattr(PlayedServer, "role", staticmethod(made.role))
            patch.setattr(compute.LocalCompute, "reboot", lambda *_: made.reboot())
            (folder / "clouds.yaml").write_text(testbed.cloud.clouds_yaml())
            yield made


@pytest.fixture
def cloud(some_cloud: SomeCloud) -> Iterator[SomeCloud]:
    """The module's cloud; fails when a test leaves a resource in it."""
    before = some_cloud.what_there_is()
    some_cloud.roles.clear()
    yield some_cloud
    assert some_cloud.what_there_is() == before


def _retry_soon(attempt: Callable[[bool], Any], deadline: Deadline, *, every: float) -> Any:
    return retry(attempt, deadline, every=every / 10)
