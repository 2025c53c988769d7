"""The request of ``hotplate test``: its command line, parsed once and passed down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hotplate.cases.images import ImageWord
from hotplate.cloud.options import CloudOptions
from hotplate.image.build_request import BuildOptions
from hotplate.settings import Settings
from hotplate.shard import Shard


@dataclass(frozen=True)
class OsCloudRequest:
    """The cloud of ``--os-cloud``, in the place of machines of this host.

    :param name: of the cloud, in ``clouds.yaml``.
    :param image: the name or id of an image in the cloud; "" for an image of this host.
    :param network: the name or id of the network of servers that name none; "" for the only one.
    :param ssh_jump: jump hosts, ``[USER@]HOST[:PORT]`` with commas between them; "" for none.
    :param ssh_config: a file for ``ssh -F``.
    :param ssh_user: the user who logs in to servers; "" for the default.
    """

    name: str
    image: str = ""
    network: str = ""
    ssh_jump: str = ""
    ssh_config: Path | None = None
    ssh_user: str = ""


@dataclass(frozen=True)
class Request:
    """One command ``hotplate test``: the images to test, and how.

    It is plain data, so that it can be sent to the process of a case and to a worker.

    :param settings: of all cases; :meth:`Case.settings_from` has those of one.
    :param images: paths, and URLs of images to fetch.
    :param releases: Debian releases of which an image is built for the test.
    :param run_file: a YAML file with more of the request.
    :param templates: files; none for the built-in cases of an image's groups.
    :param environments: files, for each template.
    :param parameters: by name, for each template.
    :param groups: the groups whose built-in cases are wanted; none for all of an image.
    :param machines: the kinds of machine of the guests; none for that of the settings.
    :param cpu_models: the guests' CPU models, or levels; none for that of the settings.
    :param firmwares: the guests' firmwares; none for that of the settings.
    :param datasources: the guests' data sources; none for that of the settings.
    :param checks: the user's own checks: executables, and directories of them.
    :param goss: a goss file; None without one.
    :param named_images: more images in the cloud, by name.
    :param cloud: the embedded cloud.
    :param build: the content of images built for ``releases``.
    :param os_cloud: the cloud to run in; None for this host, or the workers of a cluster.
    :param junit: the file for the verdicts as JUnit XML.
    :param json: the file for the verdicts as JSON.
    :param tap: the file for the verdicts as TAP.
    :param on: the address of a Dask scheduler, as it was typed; "" for this host.
    :param jobs: the most cases at a time; None for as many as suit.
    :param shard: the part of the cases to run; None for all.
    :param fail_fast: begin no case after one that did not pass.
    :param only_failed: leave out the cases that passed in the last command.
    :param retry_lost: how often a case whose machine was lost is run again.
    :param quiet: print verdicts only.
    :param keep: leave the guests up at the end of each case, for the user.
    :param pause_on_fail: the same, after a case that did not pass.
    """

    settings: Settings
    images: tuple[ImageWord, ...] = ()
    releases: tuple[str, ...] = ()
    run_file: Path | None = None
    templates: tuple[Path, ...] = ()
    environments: tuple[Path, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    cpu_models: tuple[str, ...] = ()
    firmwares: tuple[str, ...] = ()
    datasources: tuple[str, ...] = ()
    checks: tuple[Path, ...] = ()
    goss: Path | None = None
    named_images: Mapping[str, Path] = field(default_factory=dict)
    cloud: CloudOptions = field(default_factory=CloudOptions)
    build: BuildOptions = field(default_factory=BuildOptions)
    os_cloud: OsCloudRequest | None = None
    junit: Path | None = None
    json: Path | None = None
    tap: Path | None = None
    on: str = ""
    jobs: int | None = None
    shard: Shard | None = None
    fail_fast: bool = False
    only_failed: bool = False
    retry_lost: int = 1
    quiet: bool = False
    keep: bool = False
    pause_on_fail: bool = False

    @property
    def os_image(self) -> str:
        """Return the image of ``--os-image``; "" when there is none."""
        return self.os_cloud.image if self.os_cloud else ""
