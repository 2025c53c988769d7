"""Package sources of this host, so that an image is built from the same mirrors.

Reads apt's one-line format and its deb822 format, both as in sources.list(5).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from email import message_from_string
from pathlib import Path

from hotplate.errors import HostError, UsageError

#: Fetches with the host's own configuration of apt, such as proxies and methods (package apt).
APT_HELPER = Path("/usr/lib/apt/apt-helper")

#: Run it as the caller, so that it may write into the caller's directory, and without retries.
APT_OPTIONS = ("-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=0")

#: Limit of a mirror for the release file.
MIRROR_SECONDS = 30

#: The options of apt that a host with a snapshot of the archive switches off.
STANDING_STILL = ("Acquire::Check-Valid-Until", "Acquire::Check-Date")

#: Suites without an updates and a security suite of their own.
ROLLING = ("testing", "unstable")


#: URIs that can be fetched, without characters that a shell interprets, as they pass through
#: two.
PLAIN_URI = re.compile(r"https?://[\w.:@/~+%,=-]+")


@dataclass(frozen=True)
class Source:
    """One ``deb`` entry: a URI and a suite there."""

    uri: str
    suite: str
    components: tuple[str, ...]


@dataclass(frozen=True)
class Mirrors:
    """The URIs to install a release from; "" when this host has none.

    :param options: this host's apt configuration for them, as lines of apt.conf(5).
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


#: A URI in an archive of snapshots, in the layout of Debian's own:
#: ``.../archive/debian/20251101T000000Z`` (its page "Usage").
SNAPSHOTS = re.compile(r"(?P<archive>.+/archive/[^/]+)/\d{8}T\d{6}Z")

SNAPSHOT = re.compile(r"\d{8}T\d{6}Z")


def at_snapshot(mirrors: Mirrors, snapshot: str) -> Mirrors:
    """Return the URIs of the mirrors at a given time.

    :param mirrors: those of the host, which must be an archive of snapshots.
    :param snapshot: the time, such as ``20251101T000000Z``, or a day (``20251101``).
    :raises UsageError: for another form, and when the host's mirrors have no snapshots.
    """
    stamp = f"{snapshot}T000000Z" if re.fullmatch(r"\d{8}", snapshot) else snapshot
    if not SNAPSHOT.fullmatch(stamp):
        raise UsageError(
            f'the snapshot "{snapshot}" is not of the form 20251101T000000Z or 20251101'
        )
    places = {}
    for name in ("main", "updates", "security"):
        place = getattr(mirrors, name)
        match = SNAPSHOTS.fullmatch(place)
        if place and match is None:
            raise UsageError(
                f'the mirror "{place}" has no snapshots, by its address',
                hint="name one in /etc/apt, whose address ends in /archive/debian/" + stamp,
            )
        places[name] = f"{match['archive']}/{stamp}" if match else ""
    if not places["main"]:
        raise UsageError("--snapshot is for the mirrors of a Debian host, and it names none")
    still = tuple(f'{option} "false"' for option in STANDING_STILL)
    return replace(mirrors, **places, options=still)


def parse_list(text: str) -> Iterator[Source]:
    """Yield the ``deb`` entries of a file in the one-line format."""
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", " ", line.partition("#")[0]).split()
        if len(words) >= 3 and words[0] == "deb":
            yield Source(words[1], words[2], tuple(words[3:]))


def parse_deb822(text: str) -> Iterator[Source]:
    """Yield the ``deb`` entries of a file in the deb822 format, which is that of mail headers."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields = message_from_string(stanza.strip())
        if "deb" not in fields.get("Types", "").split():
            continue
        if fields.get("Enabled", "yes").lower() in ("no", "false", "0", "off", "disable"):
            continue
        for uri in fields.get("URIs", "").split():
            for suite in fields.get("Suites", "").split():
                yield Source(uri, suite, tuple(fields.get("Components", "").split()))


def configured(etc_apt: Path = Path("/etc/apt")) -> list[Source]:
    """Return every entry that apt would read on this host; unreadable files are skipped."""
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
    """Choose the URIs for a release from this host's entries.

    :param release: the release to install, which may differ from the host's.
    :param host_codename: ``VERSION_CODENAME`` of the host, "" when it has none.
    :return: empty for a host that is not Debian, where diskimage-builder's own defaults hold.
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
    """Return ``VERSION_CODENAME`` from os-release(5) when the host is Debian, else ""."""
    try:
        text = os_release.read_text()
    except OSError:
        return ""
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return fields.get("VERSION_CODENAME", "") if fields.get("ID") == "debian" else ""


def apt_options() -> tuple[str, ...]:
    """Return this host's apt options for frozen mirrors, whose release files expire.

    :return: such as ``Acquire::Check-Valid-Until "false"``; empty when apt's defaults hold.
    """
    command = ["apt-config", "dump", "--format", "%f %v%n"]
    try:
        done = subprocess.run([*command, *STANDING_STILL], capture_output=True, text=True)
    except FileNotFoundError:
        return ()
    lines = (line.split() for line in done.stdout.splitlines())
    return tuple(f'{line[0]} "false"' for line in lines if line[1:] in (["false"], ["no"], ["0"]))


def for_build(release: str, snapshot: str) -> Mirrors:
    """Return the URIs that a build installs from.

    :param snapshot: a time of the archive, "" for now.
    :raises UsageError: see :func:`at_snapshot`.
    """
    mirrors = of_this_host(release)
    return at_snapshot(mirrors, snapshot) if snapshot else mirrors


def of_this_host(release: str) -> Mirrors:
    """Return the URIs in this host's own apt configuration for a release."""
    codename = host_codename()
    if not codename:
        return Mirrors()
    return replace(choose(configured(), release, codename), options=apt_options())


def check_mirror(mirrors: Mirrors, release: str, *, helper: Path = APT_HELPER) -> None:
    """Ask a mirror for a release, with the host's own apt.

    :param helper: apt's program; when it is missing, no mirror is asked.
    :raises UsageError: the mirror does not have the release.
    :raises HostError: the mirror cannot be reached.
    """
    if not mirrors.main or not helper.is_file():
        return
    url = f"{mirrors.main}/dists/{release}/InRelease"
    with tempfile.TemporaryDirectory(prefix="hotplate-") as directory:
        command = [str(helper), *APT_OPTIONS, "download-file", url, f"{directory}/file"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MIRROR_SECONDS)
            status, text = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            status, text = 1, f"no answer within {MIRROR_SECONDS} s"
    if status == 0:
        return
    if " 404 " in text:
        raise UsageError(
            f'the mirror "{mirrors.main}" has no release "{release}"',
            hint="name another --release, or a mirror that has it in /etc/apt/sources.list",
        )
    raise HostError(
        f'the mirror "{mirrors.main}" cannot be asked for the release "{release}": {_reason(text)}',
        hint="look at /etc/apt, or build with --offline from what is cached",
    )


def _reason(text: str) -> str:
    """Return why apt could not download a file, from what it printed."""
    # "E: Failed to fetch URL  REASON"; the last line is "E: Download Failed".
    if failed := re.search(r"^E: Failed to fetch \S+\s+(.+)$", text, re.MULTILINE):
        return failed[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("E: ") if lines else "it did not say why"
