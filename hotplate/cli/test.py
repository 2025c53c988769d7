"""``hotplate test``: boot an image beside a real Heat and give a verdict."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate import heat_releases
from hotplate.cli import build
from hotplate.cli.arguments import (
    MACHINE,
    SETTING,
    add_cloud_arguments,
    add_image_argument,
    add_machine_arguments,
    add_repeated,
    add_settings,
    add_template_arguments,
    check_files,
    load_cloud_options,
    load_settings,
    words_of,
)
from hotplate.errors import HostError, UsageError, usable_names
from hotplate.interrupts import Interrupts
from hotplate.settings import HeatChoice
from hotplate.shard import Shard

if TYPE_CHECKING:
    from hotplate.cases.request import OsCloudRequest, Request
    from hotplate.cases.run_file import RunFile

#: Runs of other hosts that began less than this ago may still be running.
OTHERS_SECONDS = 6 * 3600.0

#: Means the standard output, when given for a file.
STREAM = "-"

SETTINGS_OF_THIS_HOST = (*MACHINE, "heat", "tpm", "display", "append", "lift_limits")
#: Options for this host's machines and cloud, by their names in the arguments.
OF_THIS_HOST = {
    **{f"{SETTING}{name}": f"--{name.replace('_', '-')}" for name in SETTINGS_OF_THIS_HOST},
    "machines": "--machine",
    "cpu_models": "--cpu",
    "firmwares": "--firmware",
    "datasources": "--datasource",
    "named_images": "--image",
    "environment_dir": "--environment-dir",
    "request_limit": "--request-limit",
    "network_data": "--network-data",
    "pause_on_fail": "--pause-on-fail",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate test``."""
    parser.add_argument(
        "images",
        nargs="*",
        metavar="IMAGE",
        help="a qcow2, raw, VMDK, VHDX or VDI image, or a URL of one; of several, and of several "
        "templates, kinds of machine, CPU models, firmwares and data sources, each is tested with "
        "each",
    )
    add_image_argument(parser)
    parser.add_argument(
        "-f",
        "--file",
        type=Path,
        metavar="RUN_FILE",
        help="a YAML file with images, templates, data sources, firmwares and CPU models; what is "
        "named on the command line takes the place of what it names",
    )
    add_template_arguments(parser, without="the built-in cases of the image's groups", several=True)
    add_repeated(
        parser,
        "--group",
        dest="groups",
        metavar="GROUP[,GROUP...]",
        text="without a template, try these of the image's groups only; with --release, what is "
        "built has these",
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the verdict as JSON, a list for several cases; - writes each as a line to "
        "the standard output when its case ends, and what else is said to the standard error",
    )
    parser.add_argument(
        "--tap",
        type=Path,
        metavar="FILE",
        help="write the verdict as TAP 14, with a subtest for its stages and checks",
    )
    add_settings(parser, "artifacts", "keep_runs")
    add_machine_arguments(parser, several=True)
    add_settings(parser, "heat")
    add_cloud_arguments(parser)
    add_settings(parser, "patience", "limit", "strict", "skip")
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        metavar="N",
        help="run so many cases side by side; by default as many as processors and memory allow",
    )
    parser.add_argument(
        "--on",
        metavar="SCHEDULER",
        help="run the cases on the workers of a Dask cluster (hotplate worker): the address of its "
        "scheduler, tcp://HOST:PORT or tls://HOST:PORT; -j N then limits how many at a time",
    )
    parser.add_argument(
        "--fail-fast", action="store_true", help="begin no case after one that did not pass"
    )
    parser.add_argument(
        "--only-failed",
        action="store_true",
        help="leave out the cases that passed in the last command that had several",
    )
    parser.add_argument(
        "--shard", metavar="hash:M/N", help="run the M-th of N parts, chosen by the case's name"
    )
    parser.add_argument(
        "--retry-lost",
        type=int,
        default=1,
        metavar="N",
        help="run a case again whose machine was lost, at most N times (1)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print the verdict only")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the guests up at the end, and print how to get into them, until Enter; with "
        "--os-cloud, leave all in the cloud, and end",
    )
    parser.add_argument(
        "--pause-on-fail", action="store_true", help="the same, but only if the test fails"
    )
    _add_check_arguments(parser)
    _add_release_arguments(parser)
    _add_os_cloud_arguments(parser)


def _add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the user's own checks."""
    group = parser.add_argument_group("checks of your own, after the boot")
    add_repeated(
        group,
        "--check",
        dest="checks",
        type=Path,
        metavar="PATH",
        text="an executable to run in each guest as root, or a directory of them, with kola's "
        "metadata and autopkgtest's reboots",
    )
    group.add_argument(
        "--goss", type=Path, metavar="FILE", help="a goss file, each test of which is a check"
    )
    add_settings(group, "goss_program", "known_failures")


def _add_release_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the images to build, and their content."""
    group = parser.add_argument_group("images that are built for the test")
    group.add_argument(
        "--release",
        dest="releases",
        type=_releases,
        default=[],
        metavar="RELEASE[,RELEASE...]",
        help="build an image of each of these releases, with the groups of --group (script), as "
        "the verb build does, and test it like any other; it is kept in the cache, and built again "
        "when anything is different that goes into it",
    )
    build.add_content_arguments(group)


def _releases(text: str) -> list[str]:
    """Return the releases of a list with commas.

    >>> _releases("bookworm,trixie,bookworm")
    ['bookworm', 'trixie']
    """
    releases = [*dict.fromkeys(each for each in text.split(",") if each)]
    if not releases:
        raise argparse.ArgumentTypeError("expected the name of a release")
    return releases


def _add_os_cloud_arguments(parser: argparse.ArgumentParser) -> None:
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
        "--os-network",
        metavar="NAME",
        help="the network of the servers that name none; by default the project's only one",
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


def run(args: argparse.Namespace) -> int:
    """Run the command; return the verdict's exit status, or the highest of several."""
    _check_os_cloud(args)
    if args.clean:
        _clean(args.os_cloud, load_settings(args).cache)
        return 0
    settings = load_settings(args)
    if args.on and settings.heat is not HeatChoice.INSTALLED:
        raise UsageError("--heat is for this host, and not for --on: its workers have their Heat")
    # A test in a cloud has the Heat of that cloud.
    release = HeatChoice.INSTALLED if args.os_cloud else settings.heat
    with heat_releases.chosen(release, cache=settings.cache, words=args.words):
        return _run(args)


def _clean(name: str, cache: Path) -> None:
    """Remove the resources that earlier runs left in a cloud of ``clouds.yaml``.

    :param cache: the cache, with the records of this host's runs.
    :raises HotplateError: when the cloud does not answer.
    """
    from hotplate.elsewhere import leftovers
    from hotplate.elsewhere.os_cloud import OsCloud
    from hotplate.events.log import EventLog
    from hotplate.trial.cloud_trial import RUNS

    runs = cache / RUNS
    cloud = OsCloud.open(name, EventLog())
    gone, stays = [], {}
    for each in leftovers.find(cloud):
        if each.run.goes_on(runs):
            stays[each.run] = "it goes on on this host"
        # The lock of another host's run cannot be tried from here, so that only its age counts.
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
        print(f'nothing to take away in the cloud "{name}"')


def _run(args: argparse.Namespace) -> int:
    # From here on, a signal ends no import: PyYAML's extension could not be imported again.
    with Interrupts() as interrupts, contextlib.ExitStack() as owned:
        from hotplate.cases.run import run_test
        from hotplate.report.files import ResultFiles
        from hotplate.report.github import GithubStep

        lines = None
        if str(args.json) == STREAM:
            # The standard output gets only the lines of JSON, the standard error everything else.
            lines = sys.stdout
            owned.enter_context(contextlib.redirect_stdout(sys.stderr))
        step = GithubStep.of(os.environ, sys.stdout)
        if step is not None:
            owned.enter_context(step)
        with usable_names():
            # Remove the files of an earlier command first, whatever errors follow.
            ResultFiles(args.junit, _json_file(args), several=False, tap=args.tap).begin()
            request = request_from(args)
        return run_test(request, interrupts, lines=lines, step=step)


def _json_file(args: argparse.Namespace) -> Path | None:
    return None if str(args.json) == STREAM else args.json


def request_from(args: argparse.Namespace) -> Request:
    """Return the request of the command line.

    :raises UsageError: when a file does not exist, no image is named, or a value is impossible.
    """
    # Imported here, as all that runs cases: --help and completion do without it.
    from hotplate.cases import run_file
    from hotplate.cases.images import image_word
    from hotplate.cases.request import Request
    from hotplate.image import named as named_images
    from hotplate.image.inspect import find

    # First the checks of names, before large modules are loaded.
    check_files([*args.templates, *args.environment, *([args.file] if args.file else [])])
    if not (args.images or args.releases or args.file or args.os_image):
        raise UsageError(
            "no image is named", hint="hotplate test IMAGE, --release RELEASE, or -f RUN_FILE"
        )
    images = tuple(map(image_word, args.images))
    for image in images:
        # Only for its error, before large modules are loaded.
        if isinstance(image, Path):
            find(image)
    others = named_images.parse(args.named_images)
    file = run_file.read(args.file) if args.file else run_file.RunFile()
    _check_options_of_checks(args, file)
    if not args.network_data:
        # The cloud is made of it; the other words of the file are for the cases.
        args.network_data = file.network_data
        if args.network_data and args.os_cloud:
            raise UsageError(
                f'"network_data" of "{args.file}" is for machines of this host, and not for '
                "--os-cloud"
            )
    from hotplate.stacks.template import parse_parameters

    settings = load_settings(args)
    return Request(
        # GOSS_PATH is dgoss's variable for the program.
        settings=replace(
            settings, goss_program=settings.goss_program or os.environ.get("GOSS_PATH", "")
        ),
        images=images,
        releases=tuple(args.releases),
        run_file=args.file,
        templates=tuple(args.templates),
        environments=tuple(args.environment),
        parameters=parse_parameters(args.parameter),
        groups=words_of(args.groups),
        machines=tuple(args.machines or ()),
        cpu_models=tuple(args.cpu_models or ()),
        firmwares=tuple(args.firmwares or ()),
        datasources=tuple(args.datasources or ()),
        checks=tuple(args.checks),
        goss=args.goss,
        named_images=others,
        cloud=load_cloud_options(args),
        build=build.options_of(args),
        os_cloud=_os_cloud_of(args),
        junit=args.junit,
        json=_json_file(args),
        tap=args.tap,
        on=args.on or "",
        jobs=args.jobs,
        shard=_shard_of(args.shard) if args.shard else None,
        fail_fast=args.fail_fast,
        only_failed=args.only_failed,
        retry_lost=args.retry_lost,
        quiet=args.quiet,
        keep=args.keep,
        pause_on_fail=args.pause_on_fail,
    )


def _check_options_of_checks(args: argparse.Namespace, file: RunFile) -> None:
    """Refuse options that only checks have where there are none; settings may name both always.

    :raises UsageError: names the option, or the word of the run file.
    """
    goss = args.goss or file.goss
    if getattr(args, f"{SETTING}goss_program") and not goss:
        raise UsageError("--goss-program has no goss file to run", hint="--goss FILE")
    if goss or args.checks or file.checks:
        return
    word = f'"known_failures" of "{args.file}"' if file.known_failures else ""
    if getattr(args, f"{SETTING}known_failures"):
        word = "--known-failures"
    if word:
        raise UsageError(f"{word} lists checks, and there are none", hint="--check PATH")


def _check_os_cloud(args: argparse.Namespace) -> None:
    """Check for conflicting options, before large modules are loaded.

    :raises UsageError: names one.
    """
    # Without a cloud none of its options has a meaning.
    if not args.os_cloud:
        for given, option in (
            (args.os_image, "--os-image"),
            (args.os_network, "--os-network"),
            (args.clean, "--clean"),
            (args.ssh_jump, "--ssh-jump"),
            (args.ssh_config, "--ssh-config"),
            (args.ssh_user, "--ssh-user"),
        ):
            if given:
                raise UsageError(f"{option} is for a cloud", hint="--os-cloud NAME")
        return
    # In a cloud there are no machines of this host or of workers.
    for name, option in OF_THIS_HOST.items():
        if getattr(args, name, None):
            raise UsageError(f"{option} is for machines of this host, and not for --os-cloud")
    if args.on:
        raise UsageError("--on is for machines of its workers, and not for --os-cloud")
    # One image is tested, and there is one way to reach its servers.
    for given, option in ((args.images, "IMAGE"), (args.releases, "--release")):
        if args.os_image and given:
            raise UsageError(f"--os-image names the image that is tested, and so does {option}")
    if args.clean and (
        args.images
        or args.releases
        or args.os_image
        or args.os_network
        or args.templates
        or args.file
    ):
        raise UsageError("--clean tests nothing: it goes with --os-cloud alone")
    if args.ssh_jump and args.ssh_config:
        raise UsageError("--ssh-jump and --ssh-config both say how servers are reached")
    if args.ssh_config is not None and not args.ssh_config.is_file():
        raise UsageError(f'the file "{args.ssh_config}" does not exist or is not a file')


def _os_cloud_of(args: argparse.Namespace) -> OsCloudRequest | None:
    from hotplate.cases.request import OsCloudRequest

    if not args.os_cloud:
        return None
    return OsCloudRequest(
        name=args.os_cloud,
        image=args.os_image or "",
        network=args.os_network or "",
        ssh_jump=args.ssh_jump,
        ssh_config=args.ssh_config,
        ssh_user=args.ssh_user,
    )


def _shard_of(text: str) -> Shard:
    """Return the shard of the option.

    :raises UsageError: when it is malformed.
    """
    try:
        return Shard.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
