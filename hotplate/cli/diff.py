"""``hotplate diff``: compare two images, without booting them."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from hotplate.cli.arguments import load_settings
from hotplate.errors import HostError, Outcome, UsageError
from hotplate.inspection.compare import compared, snapshot
from hotplate.inspection.inspection import inspected
from hotplate.inspection.show_comparison import as_document, as_text
from hotplate.text import quoted

ABOUT = """\
Say what is different in two images: system, agent, hooks with their tools,
packages of dpkg and of Python with their versions, services that a boot starts,
users, sizes, and the files by the package that brought them.

Neither is booted or changed. Root is needed for xfs and btrfs alone, which the
host's kernel mounts read-only; see hotplate inspect. Of files the kind, mode,
owner, size and a link's target are compared; and what is in those of the same
size, but for those of one version of a package that have the same time as well.
"""

EPILOG = """\
exit status:
  0      compared, whatever is different
  1      one is damaged, no image or without a system; with --strict, there is a
         difference
  2      wrong usage, or an image that does not exist or has another format
  3      the host lacks something, or a root file system cannot be read here
  128+N  interrupted by the signal N

examples:
  hotplate diff yesterday.qcow2 today.qcow2
  hotplate diff --json a.qcow2 b.qcow2 | jq '.packages[]'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate diff``."""
    parser.description, parser.epilog = ABOUT, EPILOG
    parser.add_argument("first", metavar="A", help="a qcow2, raw, VMDK, VHDX or VDI image")
    parser.add_argument("second", metavar="B", help="the one that came later")
    parser.add_argument("--json", action="store_true", help="print it as JSON, with all files")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page with pictures of what takes the space as well",
    )
    parser.add_argument(
        "--exact",
        action="store_true",
        help="compare the times of files as well, and what is in each of them: for builds that are "
        "to be reproducible",
    )
    parser.add_argument("--strict", action="store_true", help="exit status 1 for a difference")
    parser.add_argument(
        "--allow-backing",
        action="store_true",
        help="follow an image's backing files out of its directory",
    )


def run(args: argparse.Namespace) -> int:
    """Compare two images; return 1 for a difference when differences count.

    :raises UsageError: when the directory of the page is missing.
    :raises ImageError: when a root file system cannot be read.
    """
    # Before the images are read, which takes a while.
    if args.html is not None and not args.html.absolute().parent.is_dir():
        raise UsageError(f'"{args.html}" cannot be written: there is no such directory')
    cache = load_settings().cache
    read = partial(
        inspected,
        allow_backing=args.allow_backing,
        checksums=cache / "checksums",
        cache=cache,
    )
    with read(args.first) as first, read(args.second) as second:
        for each in (first, second):
            if each.error is not None:
                raise each.error
        comparison = compared(snapshot(first), snapshot(second), exact=args.exact)
        if args.html is not None:
            _write_page(args.html, as_document(comparison))
        if args.json:
            print(json.dumps(as_document(comparison), indent=2))
        else:
            print(as_text(comparison), end="")
    failed = args.strict and not comparison.same
    return (Outcome.FAILED if failed else Outcome.PASSED).exit_status


def _write_page(file: Path, document: dict[str, Any]) -> None:
    """Write the report in HTML.

    :raises HostError: when it cannot be written.
    """
    # Imported here: Jinja2 is slow to load, and a table does not need it.
    from hotplate.report import html

    try:
        file.write_text(html.images(document), encoding="utf-8")
    except OSError as error:
        raise HostError(
            f'"{file}" cannot be written: {error.strerror}',
            hint=f"df -h {quoted(file.parent)}",
        ) from error
