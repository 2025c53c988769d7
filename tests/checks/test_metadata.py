"""kola's metadata in a check: its two forms, its meaning, and keys that no run here honours."""

from __future__ import annotations

import pytest

from hotplate.checks.metadata import CheckMetadata, GuestFacts, of_script
from hotplate.errors import UsageError

GUEST = GuestFacts("x86_64", ("openstack", "qemu"), ("debian",), 1024)


def script(*lines: str) -> CheckMetadata | None:
    return of_script("\n".join(("#!/bin/bash", *lines, "")).encode(), where="x.sh")


def test_json_and_yaml_of_kolas_manual_are_read():
    """The examples of docs/kola/external-tests.md, section "kola.json"."""
    json = script(
        "set -xeuo pipefail",
        '# kola: { "architectures": "x86_64", "platforms": "aws gcp", "tags": "needs-internet", '
        '"description": "test" }',
    )
    yaml = script(
        "## kola:",
        "##   architectures: x86_64",
        '##   platforms: "aws gcp"  # azure support is pending',
        "##   tags: needs-internet",
        "##   description: test",
        "test code here",
    )
    assert json == yaml
    assert json == CheckMetadata("x86_64", "aws gcp", tags=("needs-internet",), description="test")


def test_script_without_metadata_and_binary_have_none():
    assert script("echo hello") is None
    assert of_script(b'\x7fELF\n# kola: {"timeoutMin": 0}\n', where="x") is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('"architectures": "x86_64 aarch64"', ""),
        ('"architectures": "aarch64"', 'architectures are "aarch64", and the guest is "x86_64"'),
        ('"architectures": "!aarch64 s390x"', ""),
        ('"architectures": "!s390x x86_64"', 'architectures are "!s390x x86_64"'),
        ('"platforms": "qemu"', ""),
        ('"platforms": "aws"', 'platforms are "aws", and the guest is "openstack qemu"'),
        ('"platforms": "!openstack"', 'platforms are "!openstack"'),
        ('"distros": "fcos"', 'distros are "fcos", and the guest is "debian"'),
        ('"tags": "needs-internet x"', "it needs the Internet"),
        ('"tags": "needs-reboot x"', ""),
        ('"requiredTag": "special"', 'it runs only by the tag "special"'),
        ('"minMemory": 1024', ""),
        ('"minMemory": 4096', "it needs 4096 MiB of memory, and the guest has 1024"),
    ],
)
def test_check_is_skipped_where_it_does_not_belong(content, why):
    metadata = script(f"# kola: {{{content}}}")
    assert metadata is not None
    skipped = metadata.why_skipped(GUEST)
    assert skipped.startswith(why)
    assert bool(skipped) == bool(why)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("# kola: {timeoutMin: 5}", 'line 2 of "x.sh": the metadata of kola is no JSON'),
        ("# kola: [1]", "is no map"),
        ("## kola: [", "the metadata of kola is no YAML"),
        ('# kola: {"timeoutmin": 5}', 'no key of kola\'s metadata; did you mean "timeoutMin"?'),
        ('# kola: {"timeoutMin": "5"}', '"timeoutMin" is "5"; expected a whole number'),
        ('# kola: {"timeoutMin": 0}', '"timeoutMin" is 0; expected minutes, 1 to 1440'),
        ('# kola: {"timeoutMin": -1}', '"timeoutMin" is -1; expected minutes, 1 to 1440'),
        ('# kola: {"timeoutMin": 5000}', '"timeoutMin" is 5000; expected minutes, 1 to 1440'),
        ('# kola: {"tags": ["a"]}', '"tags" is ["a"]; expected a text'),
        ('# kola: {"additionalDisks": ["5G"]}', '"additionalDisks" asks for a machine of its own'),
        ('# kola: {"exclusive": true}', '"exclusive" asks for a machine of its own'),
    ],
)
def test_metadata_that_cannot_be_honoured_is_refused(line, sentence):
    with pytest.raises(UsageError) as error:
        script(line)
    assert sentence in error.value.message
    assert 'line 2 of "x.sh"' in error.value.message


def test_time_limit_and_exclusive_false_are_taken():
    metadata = script('# kola: {"timeoutMin": 8, "exclusive": false}')
    assert metadata == CheckMetadata(minutes=8)
