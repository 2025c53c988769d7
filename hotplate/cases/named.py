"""The cases named by the command line of ``hotplate test`` and its run file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cases import releases as release_words
from hotplate.cases.builtin import builtin_cases
from hotplate.cases.images import ImageWord, NamedFiles
from hotplate.cases.table import Case, TemplateChoice, table
from hotplate.cli.arguments import check_files, load_settings
from hotplate.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from hotplate.image.plan import BuildRequest


def check(args: argparse.Namespace) -> None:
    """Check for misspelt file names before large modules are loaded.

    :raises UsageError: when a file does not exist, or no image is named.
    """
    from hotplate.image import named as named_images
    from hotplate.image.inspect import find

    check_files([*args.templates, *args.environment, *([args.file] if args.file else [])])
    if not (args.images or args.releases or args.file or args.os_image):
        raise UsageError(
            "no image is named", hint="hotplate test IMAGE, --release RELEASE, or -f RUN_FILE"
        )
    for image in args.images:
        if isinstance(image, Path):
            find(image)
    named_images.parse(args.named_images)


def named(args: argparse.Namespace, images_of: NamedFiles | None = None) -> list[Case]:
    """Return the cases of a command line, with its run file if it has one.

    The command line overrides the file.

    :param images_of: finds the images; by default those of this host.
    :raises UsageError: for a missing file, and for conflicting options.
    """
    # Imported here: the YAML reader is not needed for --help.
    from hotplate.cases import run_file

    check(args)
    file = run_file.read(args.file) if args.file else run_file.RunFile()
    bring = images_of or NamedFiles(load_settings(args).cache)
    # Both name the images to test: either replaces both.
    named_here = args.images or args.releases or args.os_image
    source = args if named_here else file
    images, releases = source.images, source.releases
    if not (images or releases or args.os_image):
        raise UsageError(f'the run file "{args.file}" names no image', hint="images: [web.qcow2]")
    given = {"datasource": args.datasources, "firmware": args.firmwares}
    settings = {**file.settings, **{name: words for name, words in given.items() if words}}
    templates = _templates(args, file.templates)
    release_words.check(args, releases)
    if templates and args.groups and not releases:
        raise UsageError("--group chooses built-in cases, and there is a template")
    if args.os_image and not templates:
        raise UsageError(
            f'what is in the image "{args.os_image}" cannot be looked up', hint="-t TEMPLATE"
        )
    if releases and not templates:
        release_words.check_groups(args)
    wanted = release_words.requests(args, releases, settings.get("firmware", ()))
    files = [Path(args.os_image)] if args.os_image else _files(args, bring, images, wanted)
    if templates:
        return bring.with_urls(table(files, templates, settings))
    bring.check_known(files)
    cases = table(files, [TemplateChoice()], settings)
    settings_of_all = load_settings(args)
    try:
        with bring.interruptible():
            chosen = builtin_cases(
                files,
                release_words.groups_of(args),
                allow_backing=settings_of_all.allow_backing,
                checksums=settings_of_all.cache / "checksums",
            )
    except Interrupted:
        # None of them is started, and each has a verdict that says so.
        return cases
    return [replace(each, template=chosen[each.image]) for each in cases]


def _files(
    args: argparse.Namespace,
    bring: NamedFiles,
    images: Sequence[ImageWord],
    wanted: Sequence[BuildRequest],
) -> list[Path]:
    """Return the files of the images; obstacles to a build are reported before any is fetched."""
    builds = release_words.images(args)
    placed = builds.placed(wanted) if wanted else []
    return [*bring.files(images), *bring.built(placed, builds)]


def _templates(
    args: argparse.Namespace, in_file: Sequence[TemplateChoice]
) -> Sequence[TemplateChoice]:
    """Return the named templates; parameters and environments of the command line apply to all."""
    from hotplate.stacks.template import parse_parameters

    parameters = parse_parameters(args.parameter)
    chosen = [TemplateChoice(each) for each in args.templates] or in_file
    if not chosen and (parameters or args.environment):
        raise UsageError("-P and -e need a template", hint="-t TEMPLATE")
    return [
        replace(
            each,
            environments=(*each.environments, *args.environment),
            parameters={**each.parameters, **parameters},
        )
        for each in chosen
    ]
