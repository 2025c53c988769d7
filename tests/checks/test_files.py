"""Checks on the disk: executables, directories of them, goss files, and known failures."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from hotplate.checks import files, known_failures
from hotplate.checks.check import CheckResult, CheckStatus, DataFile, UserChecks
from hotplate.checks.files import read_checks, read_goss
from hotplate.checks.known_failures import KnownFailure
from hotplate.checks.metadata import CheckMetadata
from hotplate.checks.run import with_known
from hotplate.errors import UsageError


@pytest.fixture
def add(tmp_path: Path):
    def add_it(name: str, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return add_it


def test_each_executable_below_a_directory_is_a_check(add, tmp_path):
    add("tests/b.sh")
    add("tests/net/a.sh")
    add("tests/net/data/tool")
    add("tests/net/data/deep/lib.sh", "x", 0o644)
    add("tests/README", "text", 0o644)
    add("tests/.hidden.sh")
    checks = read_checks([tmp_path / "tests"])
    assert [each.name for each in checks] == ["b.sh", "net/a.sh"]
    assert checks[0].data == ()
    assert {*checks[1].data} == {
        DataFile("tool", b"#!/bin/sh\n", 0o755),
        DataFile("deep/lib.sh", b"x", 0o644),
    }


def test_links_back_to_a_directory_are_not_followed(add, tmp_path):
    """Two of them have 2 to the power of 40 names for each file."""
    add("inner/disk")
    for name in ("a", "b"):
        (tmp_path / "inner" / name).symlink_to("..")
        (tmp_path / name).symlink_to(".")
    assert [each.name for each in read_checks([tmp_path])] == ["inner/disk"]


def test_metadata_of_a_directory_is_that_of_checks_without_their_own(add, tmp_path):
    add("tests/kola.json", '{"timeoutMin": 3}', 0o644)
    add("tests/a.sh")
    add("tests/b.sh", '#!/bin/sh\n# kola: {"tags": "x"}\n')
    first, second = read_checks([tmp_path / "tests"])
    assert first.metadata == CheckMetadata(minutes=3)
    assert second.metadata == CheckMetadata(tags=("x",))


def test_equal_names_of_two_directories_get_their_paths(add, tmp_path):
    one, two = add("one/a.sh"), add("two/a.sh")
    checks = read_checks([one.parent, two.parent])
    assert [each.name for each in checks] == [str(one), str(two)]
    with pytest.raises(UsageError, match="is named twice"):
        read_checks([one, one])


@pytest.mark.parametrize(
    ("name", "mode", "named", "sentence"),
    [
        ("a.sh", 0o644, "a.sh", 'a.sh" is not executable'),
        ("t/a.sh", 0o644, "t", 'a.sh" begins as a script and is not executable'),
        ("t/data/a.sh", 0o755, "t", 't" has no executable, so there is no check in it'),
        ("t/config.ign", 0o644, "t", "is a configuration for the first boot of a machine"),
        ("a.sh", 0o755, "b.sh", 'b.sh" does not exist'),
    ],
)
def test_path_without_a_usable_check_is_refused(add, tmp_path, name, mode, named, sentence):
    add(name, mode=mode)
    with pytest.raises(UsageError) as error:
        read_checks([tmp_path / named])
    assert sentence in error.value.message


def test_unreadable_directory_is_refused(add, tmp_path, monkeypatch):
    add("t/a.sh")

    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    # Root, who runs many tests, may read everything.
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UsageError, match=r'/t" cannot be read: Permission denied'):
        read_checks([tmp_path / "t"])


def test_check_that_is_too_large_to_copy_is_refused(add, monkeypatch, tmp_path):
    monkeypatch.setattr(files, "MAX_BYTES", 20)
    add("t/a.sh")
    add("t/data/x", "x" * 15, 0o644)
    with pytest.raises(UsageError, match=r"at most 0 are copied into a guest"):
        read_checks([tmp_path / "t"])
    add("t/data/y", "x" * 15, 0o644)
    with pytest.raises(UsageError, match="too much to copy into a guest"):
        read_checks([tmp_path / "t"])


def test_goss_file_needs_itself_and_a_program(add, tmp_path):
    file, program = add("goss.yaml", "file: {}\n", 0o644), add("goss", "ELF")
    check = read_goss(file, program)
    assert [(each.path, each.mode) for each in check.data] == [
        ("goss", 0o755),
        ("goss.yaml", 0o644),
    ]
    with pytest.raises(UsageError, match=r'goss file ".*/x" does not exist'):
        read_goss(tmp_path / "x", program)
    with pytest.raises(UsageError, match="no goss program is named") as error:
        read_goss(file, None)
    assert error.value.hint == "--goss-program PATH, or GOSS_PATH=PATH"
    with pytest.raises(UsageError, match=r'goss program ".*/x" does not exist'):
        read_goss(file, tmp_path / "x")


# -- known failures ---------------------------------------------------------------------------

KNOWN = """\
- pattern: net/*
  tracker: https://example.org/1
  snooze: 2026-07-03
  warn: true
  arches: [ppc64le]
"""


def test_entry_of_kolas_denylist_is_read(add):
    (entry,) = known_failures.read(add("known.yaml", KNOWN))
    assert entry == KnownFailure("net/*", "https://example.org/1", "2026-07-03", ("ppc64le",))
    assert entry.is_about("net/a.sh", "ppc64le")
    assert not entry.is_about("net/a.sh", "x86_64")
    assert not entry.is_about("a.sh", "ppc64le")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "cannot be read: while parsing"),
        ("pattern: x\n", "are no list"),
        ("- x\n", 'entry 1 of "'),
        ("- {pattern: x, tracker: y}\n", 'has no "snooze"; expected pattern, tracker, snooze'),
        ("- {pattern: x, tracker: y, snooze: soon}\n", '"snooze" is "soon"; expected a date'),
        (
            "- {pattern: x, tracker: y, snooze: 2026-01-01, streams: [a]}\n",
            '"streams" is not known',
        ),
        ("- {pattern: x, tracker: y, snooze: 2026-01-01, warn: false}\n", '"warn" is not true'),
        ("- {pattern: x, tracker: y, snooze: 2026-01-01, arches: a}\n", '"arches" is no list'),
    ],
)
def test_invalid_list_of_known_failures_is_refused(add, text, sentence):
    with pytest.raises(UsageError) as error:
        known_failures.read(add("known.yaml", text))
    assert sentence in error.value.message


class Runner:
    architecture = "x86_64"


@pytest.mark.parametrize(
    ("status", "today", "expected", "reason"),
    [
        ("failed", "2026-07-03", "known failure", "bad; known until 2026-07-03: T"),
        ("failed", "2026-07-04", "failed", "bad; known until 2026-07-03, which has passed: T"),
        ("passed", "2026-07-03", "passed", 'it is listed as known to fail ("a*", T)'),
        ("skipped", "2026-07-03", "skipped", "bad"),
    ],
)
def test_listed_check_is_reported_as_such_until_its_day(status, today, expected, reason):
    checks = UserChecks(known=(KnownFailure("a*", "T", "2026-07-03"),))
    result = CheckResult("a.sh", CheckStatus(status), reason="bad")
    done = with_known(result, checks, Runner(), today=datetime.date.fromisoformat(today))  # type: ignore[arg-type]
    assert (str(done.status), done.reason) == (expected, reason)
    other = CheckResult("b.sh", CheckStatus(status), reason="bad")
    assert with_known(other, checks, Runner(), today=datetime.date(2026, 1, 1)) == other  # type: ignore[arg-type]
