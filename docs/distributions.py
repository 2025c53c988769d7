"""Resolve the packages of the elements per distribution, with diskimage-builder's own programs.

``distributions.yaml`` names the releases, and has the packages that each is documented to have.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hotplate.image.plan import dib_elements_dir

HERE = Path(__file__).resolve().parent
ELEMENTS = HERE.parent / "elements"
COLUMNS = ("Debian", "Ubuntu", "RHEL-like", "Fedora", "openSUSE")
#: The parts of the table that list packages.
KINDS = ("documented", "absent", "unknown")
#: The Python that the element heat-agent asks for.
OLDEST_PYTHON = (3, 9)

#: Variables that make an element install more than by default.
CHOICES = {
    "heat-config-docker-engine": {"DIB_HEAT_DOCKER_PACKAGE": "podman"},
    "os-apply-config": {"DIB_DEFAULT_INSTALLTYPE": "package"},
    "os-collect-config": {"DIB_DEFAULT_INSTALLTYPE": "package"},
    "os-refresh-config": {"DIB_DEFAULT_INSTALLTYPE": "package"},
}


@dataclass(frozen=True)
class Release:
    """A release of a distribution, and the names that diskimage-builder has for it."""

    name: str
    column: str
    python: tuple[int, ...]
    names: tuple[tuple[str, str], ...]


@cache
def table() -> Any:
    """Return the content of ``distributions.yaml``."""
    return yaml.safe_load((HERE / "distributions.yaml").read_text())


@cache
def releases() -> tuple[Release, ...]:
    """Return all releases of the table."""
    return tuple(
        Release(
            row["name"],
            row["column"],
            tuple(map(int, row["python"].split("."))),
            tuple((distro, release) for distro, release in row["as"]),
        )
        for row in table()["releases"]
    )


def listed(kind: str, release: str) -> set[str]:
    """Return the packages that a part of the table has for a release."""
    rows = [row for row in table()[kind] if release in row["releases"]]
    return {package for row in rows for package in row["packages"]}


def installing() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the elements that install packages, each with the variables that are set."""
    for path in sorted(ELEMENTS.glob("*/package-installs.yaml")):
        yield path.parent.name, {}
        if path.parent.name in CHOICES:
            yield path.parent.name, CHOICES[path.parent.name]


def resolve(element: str, distro: str, release: str, choice: Mapping[str, str]) -> list[str] | None:
    """Return the packages that an element installs; None if it refuses the distribution.

    :param distro: diskimage-builder's DISTRO_NAME.
    :param release: its DIB_RELEASE.
    :param choice: the variables that the builder of the image sets.
    """
    environment = _environment(element, distro, release, choice)
    if environment is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        squashed = Path(directory) / "squashed"
        words = ("--elements", element, "--path", str(ELEMENTS), str(squashed))
        _run("package-installs/bin/package-installs-squash", words, environment)
        phases = json.loads(squashed.read_text())
    asked = [name for phase in phases.values() for name, _ in phase.get("install", [])]
    pkg_map = ELEMENTS / element / "pkg-map"
    if not asked or not pkg_map.is_file():
        return sorted(asked)
    words = ("--pkg-map", str(pkg_map), "--missing-ok", *asked)
    return sorted(_run("pkg-map/bin/pkg-map", words, environment).split())


def _environment(
    element: str, distro: str, release: str, choice: Mapping[str, str]
) -> dict[str, str] | None:
    """Return the variables after environment.d of an element; None where that ends the build."""
    given = {"DISTRO_NAME": distro, "DIB_RELEASE": release, "ARCH": "amd64", **choice}
    names = sorted(map(str, (ELEMENTS / element).glob("environment.d/*")))
    if not names:
        return given
    program = 'set -eu; for file; do . "$file"; done; env -0'
    done = subprocess.run(
        ["bash", "-c", program, "environment.d", *names],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        return None
    return dict(word.split("=", 1) for word in done.stdout.split("\0") if "=" in word)


def _run(program: str, words: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Run a program of diskimage-builder in this process, as 300 interpreters take a minute."""
    output = io.StringIO()
    argv, variables = sys.argv, dict(os.environ)
    logging.disable(logging.INFO)
    try:
        sys.argv = [program, *words]
        os.environ.clear()
        os.environ.update(environment)
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            runpy.run_path(str(dib_elements_dir() / program), run_name="__main__")
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(variables)
        logging.disable(logging.NOTSET)
    return output.getvalue()
