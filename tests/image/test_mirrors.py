"""Package sources, read from apt's two formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotplate.errors import UsageError
from hotplate.image.mirrors import (
    Mirrors,
    Source,
    at_snapshot,
    choose,
    configured,
    host_codename,
    parse_deb822,
    parse_list,
)

LIST = """\
# a comment
deb http://one.example/debian bookworm main contrib   # trailing
deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] https://two.example/debian trixie main
deb-src http://one.example/debian bookworm main
deb http://short.example/debian
"""

DEB822 = """\
Types: deb deb-src
URIs: http://one.example/debian
Suites: bookworm
 bookworm-updates
# a comment inside
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://sec.example/debian-security
Suites: bookworm-security
Components: main
"""


def test_one_line_format_is_read():
    assert list(parse_list(LIST)) == [
        Source("http://one.example/debian", "bookworm", ("main", "contrib")),
        Source("https://two.example/debian", "trixie", ("main",)),
    ]


def test_deb822_format_is_read():
    assert [(source.uri, source.suite) for source in parse_deb822(DEB822)] == [
        ("http://one.example/debian", "bookworm"),
        ("http://one.example/debian", "bookworm-updates"),
        ("http://sec.example/debian-security", "bookworm-security"),
    ]


def test_files_that_apt_ignores_are_skipped(tmp_path: Path):
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.example/debian bookworm main\n")
    (parts / "b.list").write_text("deb http://b.example/debian bookworm main\n")
    (parts / "c.sources").write_text(
        "Types: deb\nURIs: http://c.example/\nSuites: x\nComponents: main\n"
    )
    (parts / "d.list.disabled").write_text("deb http://d.example/debian bookworm main\n")
    (parts / "e.list").write_bytes(b"\xff\xfe")
    assert [source.uri[7] for source in configured(tmp_path)] == ["a", "b", "c"]


def test_host_without_apt_has_no_sources(tmp_path: Path):
    assert configured(tmp_path / "none") == []


def test_another_release_comes_from_the_same_mirrors():
    mirrors = choose(list(parse_deb822(DEB822)), "trixie", "bookworm")
    assert mirrors.sources_conf("trixie").splitlines() == [
        "default:deb http://one.example/debian trixie main",
        "updates:deb http://one.example/debian trixie-updates main",
        "security:deb http://sec.example/debian-security trixie-security main",
    ]


@pytest.mark.parametrize("release", ["testing", "unstable"])
def test_rolling_suites_have_no_updates(release: str):
    mirrors = choose(list(parse_deb822(DEB822)), release, "bookworm")
    assert mirrors.sources_conf(release) == f"default:deb http://one.example/debian {release} main"


def test_security_suite_is_left_out_when_the_host_has_none():
    mirrors = choose(list(parse_list(LIST)), "bookworm", "bookworm")
    assert mirrors == Mirrors("http://one.example/debian")
    assert "security" not in mirrors.sources_conf("bookworm")


@pytest.mark.parametrize(
    "uri",
    [
        "file:/srv/debian",
        "cdrom:[Debian]/",
        "http://a.example/$(reboot)",
        "http://a.example/'x",
        "mirror+file:/etc/apt/m",
    ],
)
def test_unsafe_uris_are_left_out(uri: str):
    assert choose([Source(uri, "bookworm", ("main",))], "bookworm", "bookworm") == Mirrors()


def test_codename_is_only_that_of_debian(tmp_path: Path):
    release = tmp_path / "os-release"
    release.write_text('ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="x"\n')
    assert host_codename(release) == "bookworm"
    release.write_text("ID=ubuntu\nVERSION_CODENAME=noble\n")
    assert host_codename(release) == ""
    assert host_codename(tmp_path / "none") == ""


def test_mirrors_are_moved_to_a_snapshot():
    stamp = "20250520T000000Z"
    host = Mirrors(
        f"http://snap.example/archive/debian/{stamp}",
        f"http://snap.example/archive/debian/{stamp}",
        f"http://snap.example/archive/debian-security/{stamp}",
    )
    then = at_snapshot(host, "20251101")
    assert then.main == "http://snap.example/archive/debian/20251101T000000Z"
    assert then.security == "http://snap.example/archive/debian-security/20251101T000000Z"
    assert then.options == ('Acquire::Check-Valid-Until "false"', 'Acquire::Check-Date "false"')
    assert at_snapshot(host, "20251101T123000Z").updates.endswith("/20251101T123000Z")


@pytest.mark.parametrize(
    ("place", "snapshot", "sentence"),
    [
        ("http://snap.example/archive/debian/20250520T000000Z", "yesterday", "not of the form"),
        ("http://one.example/debian", "20251101", '"http://one.example/debian" has no snapshots'),
        ("", "20251101", "it names none"),
    ],
)
def test_unavailable_snapshot_is_refused(place, snapshot, sentence):
    with pytest.raises(UsageError, match=sentence):
        at_snapshot(Mirrors(place), snapshot)
