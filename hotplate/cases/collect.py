"""Collect the cases named by the command line of ``hotplate test`` and its run file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hotplate.cases import releases as release_words
from hotplate.cases import run_file
from hotplate.cases.builtin import builtin_cases, check_cases
from hotplate.cases.images import ImageWord, NamedFiles
from hotplate.cases.request import Request
from hotplate.cases.table import Case, TemplateChoice, table
from hotplate.checks import known_failures
from hotplate.checks.check import UserChecks
from hotplate.checks.files import read_checks, read_goss
from hotplate.errors import Interrupted, UsageError
from hotplate.image.plan import BuildRequest
from hotplate.interrupts import Interrupts
from hotplate.settings import MachineChoice


def collect(request: Request, images_of: NamedFiles, interrupts: Interrupts) -> list[Case]:
    """Return the cases of a command, with its run file if it has one.

    The command line overrides the file.

    :param images_of: finds the images.
    :param interrupts: end the inspection of the images.
    :raises UsageError: for a missing file, and for conflicting options.
    """
    file = run_file.read(request.run_file) if request.run_file else run_file.RunFile()
    checks = _checks(request, file)
    # Both name the images to test: either replaces both.
    named_here = request.images or request.releases or request.os_image
    source = request if named_here else file
    images, releases = source.images, source.releases
    if not (images or releases or request.os_image):
        raise UsageError(
            f'the run file "{request.run_file}" names no image', hint="images: [web.qcow2]"
        )
    given = {
        "machine": request.machines,
        "cpu": request.cpu_models,
        "datasource": request.datasources,
        "firmware": request.firmwares,
    }
    # What is named on the command line replaces the file's values; it does not add to them.
    settings = {**file.settings, **{name: words for name, words in given.items() if words}}
    templates = _templates(request, file.templates)
    release_words.check(request.build, releases)
    # With --release the groups are those of the images to build, which a template may use.
    if templates and request.groups and not releases:
        raise UsageError("--group chooses built-in cases, and there is a template")
    if request.os_image and not templates:
        raise UsageError(
            f'what is in the image "{request.os_image}" cannot be looked up', hint="-t TEMPLATE"
        )
    if releases and not templates and request.groups:
        # Before an image is built to test them.
        check_cases(request.groups, "that is built")
    wanted = release_words.requests(request, releases, settings.get("firmware", ()))
    files = (
        # An image of the cloud has no file here; its name takes the place of the path.
        [Path(request.os_image)] if request.os_image else _files(request, images_of, images, wanted)
    )
    # With a template no image is inspected, so that the workers may be the ones that fetch it.
    if templates:
        return images_of.with_urls(table(files, templates, settings, checks=checks))
    images_of.check_known(files)
    cases = table(files, [TemplateChoice()], settings, checks=checks)
    kinds = {each.settings_from(request.settings).machine for each in cases}
    try:
        with interrupts.allowed():
            chosen = builtin_cases(
                files,
                request.groups,
                request.settings,
                # The kernel mounts the image of a container in any case.
                cache=request.settings.cache if MachineChoice.CONTAINER in kinds else None,
            )
    except Interrupted:
        # None of them is started, and each has a verdict that says so.
        return cases
    return [replace(each, template=chosen[each.image]) for each in cases]


def _checks(request: Request, file: run_file.RunFile) -> UserChecks:
    """Read the user's own checks, before any image is fetched or built for them.

    :raises UsageError: for a check, or a list of known failures, that cannot be used.
    """
    settings = request.settings
    goss = request.goss or file.goss
    known = Path(settings.known_failures) if settings.known_failures else file.known_failures
    program = Path(settings.goss_program) if settings.goss_program else None
    return UserChecks(
        read_checks(request.checks or file.checks),
        read_goss(goss, program) if goss else None,
        known_failures.read(known) if known else (),
    )


def _files(
    request: Request,
    images_of: NamedFiles,
    images: Sequence[ImageWord],
    wanted: Sequence[BuildRequest],
) -> list[Path]:
    """Return the files of the images; obstacles to a build are reported before any is fetched."""
    builds = release_words.images(quiet=request.quiet)
    placed = builds.placed(wanted) if wanted else []
    return [*images_of.files(images), *images_of.built(placed, builds)]


def _templates(request: Request, in_file: Sequence[TemplateChoice]) -> Sequence[TemplateChoice]:
    """Return the named templates; parameters and environments of the command line apply to all."""
    chosen = [TemplateChoice(each) for each in request.templates] or in_file
    if not chosen and (request.parameters or request.environments):
        raise UsageError("-P and -e need a template", hint="-t TEMPLATE")
    return [
        replace(
            each,
            environments=(*each.environments, *request.environments),
            parameters={**each.parameters, **request.parameters},
        )
        for each in chosen
    ]
