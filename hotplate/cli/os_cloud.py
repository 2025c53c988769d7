"""``hotplate test --os-cloud``: its options, a case in a cloud, and ``--clean``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cli.arguments import load_settings
from hotplate.errors import HostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from hotplate.trial.cloud_trial import CloudChoice

OTHERS_SECONDS = 6 * 3600.0
"""Runs of other hosts that began less than this ago may still be running."""

OF_THIS_HOST = {
    "memory": "--memory",
    "cpus": "--cpus",
    "arch": "--arch",
    "accelerator": "--accelerator",
    "wiring": "--wiring",
    "firmwares": "--firmware",
    "datasources": "--datasource",
    "display": "--display",
    "append": "--append",
    "named_images": "--image",
    "environment_dir": "--environment-dir",
    "request_limit": "--request-limit",
    "lift_limits": "--lift-limits",
    "pause_on_fail": "--pause-on-fail",
}
"""Options for this host's machines and cloud, by their names in the arguments."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for a test in a cloud."""
    group = parser.add_argument_group("in a cloud of clouds.yaml")
    group.add_argument(
        "--os-cloud",
        metavar="NAME",
        help="run in this cloud, as the openstack command finds it; what is made there is taken "
        "away again",
    )
    group.add_argument(
        "--os-image", metavar="NAME", help="an image of the cloud, in the place of IMAGE"
    )
    group.add_argument(
        "--clean",
        action="store_true",
        help="take away what earlier runs have left in the cloud, and nothing else",
    )
    group.add_argument(
        "--ssh-jump",
        default="",
        metavar="[USER@]HOST[:PORT]",
        help="a jump host, by which servers are reached to look into them; several with commas "
        "between them",
    )
    group.add_argument(
        "--ssh-config", type=Path, metavar="FILE", help="how servers are reached, as for ssh -F"
    )
    group.add_argument(
        "--ssh-user",
        default="",
        metavar="USER",
        help="who logs in to servers; by default root, or whom cloud-init names instead, by sudo",
    )


def check(args: argparse.Namespace) -> None:
    """Check for conflicting options, before large modules are loaded.

    :raises UsageError: names one.
    """
    if not args.os_cloud:
        for given, option in (
            (args.os_image, "--os-image"),
            (args.clean, "--clean"),
            (args.ssh_jump, "--ssh-jump"),
            (args.ssh_config, "--ssh-config"),
            (args.ssh_user, "--ssh-user"),
        ):
            if given:
                raise UsageError(f"{option} is for a cloud", hint="--os-cloud NAME")
        return
    for name, option in OF_THIS_HOST.items():
        if getattr(args, name, None):
            raise UsageError(f"{option} is for machines of this host, and not for --os-cloud")
    if args.on:
        raise UsageError("--on is for machines of its workers, and not for --os-cloud")
    for given, option in ((args.images, "IMAGE"), (args.releases, "--release")):
        if args.os_image and given:
            raise UsageError(f"--os-image names the image that is tested, and so does {option}")
    if args.ssh_jump and args.ssh_config:
        raise UsageError("--ssh-jump and --ssh-config both say how servers are reached")
    if args.ssh_config is not None and not args.ssh_config.is_file():
        raise UsageError(f'the file "{args.ssh_config}" does not exist or is not a file')


def load(
    args: argparse.Namespace, *, uninterrupted: Callable[[], AbstractContextManager[None]]
) -> CloudChoice:
    """Return the cloud options of a run.

    :param uninterrupted: a context manager in which signals wait.
    """
    from hotplate.elsewhere.ways import WayOptions
    from hotplate.trial.cloud_trial import CloudChoice

    return CloudChoice(
        name=args.os_cloud,
        image=args.os_image or "",
        ways=WayOptions(
            jump=args.ssh_jump,
            config=args.ssh_config,
            user=args.ssh_user,
            environment=dict(os.environ),
        ),
        keep=args.keep,
        uninterrupted=uninterrupted,
    )


def clean(args: argparse.Namespace) -> int:
    """Remove the resources that earlier runs left in a cloud; return the exit status.

    :raises HotplateError: when the cloud does not answer.
    """
    from hotplate.elsewhere import leftovers
    from hotplate.elsewhere.os_cloud import OsCloud
    from hotplate.events.log import EventLog
    from hotplate.trial.cloud_trial import RUNS

    if args.images or args.releases or args.os_image or args.templates or args.file:
        raise UsageError("--clean tests nothing: it goes with --os-cloud alone")
    runs = load_settings(args).cache / RUNS
    cloud = OsCloud.open(args.os_cloud, EventLog())
    gone, stays = [], {}
    for each in leftovers.find(cloud):
        if each.run.goes_on(runs):
            stays[each.run] = "it goes on on this host"
        elif not each.run.is_of_this_host and each.run.age < OTHERS_SECONDS:
            hours = OTHERS_SECONDS / 3600
            stays[each.run] = f"it began on another host less than {hours:.0f} hours ago"
        else:
            gone.append(each)
    for run, why in stays.items():
        print(f"left alone: {run.name}, {why}")
    problems = leftovers.remove(cloud, gone, say=lambda text: print(text, flush=True))
    if problems:
        raise HostError("; ".join(problems))
    if not gone:
        print(f'nothing to take away in the cloud "{args.os_cloud}"')
    return 0
