"""``hotplate doctor``: report the abilities of this host, and the packages to install."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from hotplate import heat_releases
from hotplate.cli.arguments import add_settings, load_settings
from hotplate.errors import HostError, Outcome
from hotplate.testbed.host_probes import Finding, State, Use, probes

TITLES = {
    Use.TEST: "to test an image (hotplate test)",
    Use.BUILD: "to build an image (hotplate build)",
    Use.EXTRA: "besides",
}


EPILOG = """\
exit status:
  0      hotplate test can run here, whether or not hotplate build can
  3      it cannot; what is missing is named, with the command that installs it
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate doctor``."""
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    add_settings(parser, "heat")


def examine(cache: Path) -> list[Finding]:
    """Run every probe; a failing probe is itself a finding.

    :param cache: the cache directory.
    """
    findings: list[Finding] = []
    for name, probe in probes(cache).items():
        try:
            findings += probe()
        except (OSError, HostError) as error:
            findings.append(Finding(name, Use.EXTRA, State.FAILS, f"could not be tried: {error}"))
    return findings


def can(findings: Sequence[Finding], use: Use) -> bool:
    """Return True when nothing that ``use`` needs is missing."""
    return not any(each.use is use and each.state is State.FAILS for each in findings)


def command(findings: Sequence[Finding], *states: State, root: bool) -> str:
    """Return one command that installs the missing packages, "" when no package would help.

    :param states: of the findings to fix.
    """
    packages = [each.package for each in findings if each.state in states and each.package]
    if not packages:
        return ""
    # Each package once, in the order of the findings.
    words = " ".join(dict.fromkeys(packages))
    return f"{'' if root else 'sudo '}apt-get install --no-install-recommends {words}"


def as_json(findings: Sequence[Finding], *, root: bool) -> dict[str, object]:
    """Return the findings as JSON types."""
    return {
        "can_test": can(findings, Use.TEST),
        "can_build": can(findings, Use.BUILD),
        "install": command(findings, State.FAILS, root=root),
        "install_also": command(findings, State.OTHERWISE, root=root),
        "findings": [
            {
                "name": each.name,
                "for": str(each.use),
                "works": each.state is State.WORKS,
                "needed": each.use is not Use.EXTRA,
                "sentence": each.sentence,
                "package": each.package,
            }
            for each in findings
        ],
    }


def as_text(findings: Sequence[Finding], *, root: bool) -> str:
    """Return the findings for people; the last lines have the conclusion and the packages."""
    width = max((len(each.name) for each in findings), default=0)
    lines = []
    # The findings of each use.
    for use, title in TITLES.items():
        lines.append(title)
        lines += [
            f"  {each.state}  {each.name.ljust(width)}  {each.sentence}"
            for each in findings
            if each.use is use
        ]
        lines.append("")
    # The packages, in one command for each purpose.
    if also := command(findings, State.OTHERWISE, root=root):
        lines.append(f"for the rest: {also}")
    if install := command(findings, State.FAILS, root=root):
        lines.append(f"to install what is missing: {install}")
    # The conclusion; that of the test, which gives the exit status, is last.
    for use in (Use.BUILD, Use.TEST):
        missing = [each.name for each in findings if each.use is use and each.state is State.FAILS]
        if missing:
            lines.append(f"hotplate {use} cannot run here; missing: {', '.join(missing)}")
        else:
            lines.append(f"hotplate {use} can run here")
    return "\n".join(lines) + "\n"


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 0 when ``hotplate test`` can run, 3 otherwise."""
    settings = load_settings(args)
    with heat_releases.chosen(settings.heat, cache=settings.cache, words=args.words):
        findings = examine(settings.cache)
    root = os.geteuid() == 0
    if args.json:
        print(json.dumps(as_json(findings, root=root), indent=2))
    else:
        print(as_text(findings, root=root), end="")
    return 0 if can(findings, Use.TEST) else Outcome.HOST.exit_status
