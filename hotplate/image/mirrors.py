"""Where this host gets its Debian packages from, so that an image is built from the same place.

Reads apt's one-line format and its deb822 format, both as in sources.list(5).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

STANDING_STILL = ("Acquire::Check-Valid-Until", "Acquire::Check-Date")
"""The options of apt that a host with a snapshot of the archive has switched off."""

ROLLING = ("testing", "unstable")
"""Suites without an updates and a security suite of their own."""


PLAIN_URI = re.compile(r"https?://[\w.:@/~+%,=-]+")
"""What can be fetched from, and means nothing to a shell, through which it goes twice."""


@dataclass(frozen=True)
class Source:
    """One ``deb`` entry: a place and a suite there."""

    uri: str
    suite: str
    components: tuple[str, ...]


@dataclass(frozen=True)
class Mirrors:
    """The places to install a release from; "" where this host names none.

    :param options: how this host's apt is configured to treat them, as lines of apt.conf(5).
    """

    main: str = ""
    updates: str = ""
    security: str = ""
    options: tuple[str, ...] = ()

    def sources_conf(self, release: str) -> str:
        """Return the value of ``DIB_APT_SOURCES_CONF`` for a release: lines of ``name:entry``."""
        entries = [("default", self.main, release)]
        if release not in ROLLING:
            entries.append(("updates", self.updates, f"{release}-updates"))
            entries.append(("security", self.security, f"{release}-security"))
        return "\n".join(f"{name}:deb {uri} {suite} main" for name, uri, suite in entries if uri)


def parse_list(text: str) -> Iterator[Source]:
    """Yield the ``deb`` entries of a file in the one-line format."""
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", " ", line.partition("#")[0]).split()
        if len(words) >= 3 and words[0] == "deb":
            yield Source(words[1], words[2], tuple(words[3:]))


def parse_deb822(text: str) -> Iterator[Source]:
    """Yield the ``deb`` entries of a file in the deb822 format."""
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        last = ""
        for line in stanza.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0].isspace():
                if last:
                    fields[last] += " " + line.strip()
            else:
                name, _, value = line.partition(":")
                last = name.strip().lower()
                fields[last] = value.strip()
        if "deb" not in fields.get("types", "").split():
            continue
        if fields.get("enabled", "yes").lower() in ("no", "false", "0", "off", "disable"):
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(uri, suite, tuple(fields.get("components", "").split()))


def configured(etc_apt: Path = Path("/etc/apt")) -> list[Source]:
    """Every entry that apt would read on this host; files that cannot be read are passed over."""
    sources: list[Source] = []
    files = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    for file in files:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        if file.suffix == ".list":
            sources += parse_list(text)
        elif file.suffix == ".sources":
            sources += parse_deb822(text)
    return sources


def choose(sources: list[Source], release: str, host_codename: str) -> Mirrors:
    """Pick the places for a release out of this host's entries.

    :param release: the release to install, which the host itself need not be.
    :param host_codename: ``VERSION_CODENAME`` of the host, "" when it has none.
    :return: empty for a host that is not Debian, for which diskimage-builder's own defaults hold.
    """
    usable = [
        source
        for source in sources
        if PLAIN_URI.fullmatch(source.uri) and "main" in source.components
    ]

    def find(suffix: str) -> str:
        for codename in (release, host_codename, "stable", *ROLLING, "sid"):
            for source in usable:
                if codename and source.suite == codename + suffix:
                    return source.uri.rstrip("/")
        return ""

    return Mirrors(find(""), find("-updates"), find("-security"))


def host_codename(os_release: Path = Path("/etc/os-release")) -> str:
    """``VERSION_CODENAME`` from os-release(5) when the host is Debian, else ""."""
    try:
        text = os_release.read_text()
    except OSError:
        return ""
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return fields.get("VERSION_CODENAME", "") if fields.get("ID") == "debian" else ""


def apt_options() -> tuple[str, ...]:
    """Return this host's apt options for mirrors that stand still, whose release files expire.

    :return: such as ``Acquire::Check-Valid-Until "false"``; nothing where apt's defaults hold.
    """
    command = ["apt-config", "dump", "--format", "%f %v%n"]
    try:
        done = subprocess.run(
            [*command, *STANDING_STILL], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ()
    lines = (line.split() for line in done.stdout.splitlines())
    return tuple(f'{line[0]} "false"' for line in lines if line[1:] in (["false"], ["no"], ["0"]))


def of_this_host(release: str) -> Mirrors:
    """Return the places this host's own apt configuration names, for a release."""
    codename = host_codename()
    if not codename:
        return Mirrors()
    return replace(choose(configured(), release, codename), options=apt_options())
