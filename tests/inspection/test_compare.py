"""Differences of two images, each kind of difference and none in equal images."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from hotplate.inspection.compare import NO_PACKAGE, Comparison, Difference, How, compared, snapshot
from hotplate.inspection.inspection import inspected

WANTS = "etc/systemd/system/multi-user.target.wants"


@pytest.fixture
def other(good: Path, tmp_path: Path, write) -> Path:
    """A copy of the good image's files with the same times, to be changed."""
    write(good, "etc/passwd", "root:x:0:0:root:/root:/bin/bash\nme:x:1000:1000::/home/me:/bin/sh\n")
    root = tmp_path / "other"
    shutil.copytree(good, root, symlinks=True)
    return root


@pytest.fixture
def compare(good, other, make_disk):
    """Return a function that makes both images, and compares the second with the first."""
    with contextlib.ExitStack() as stack:

        def made() -> Comparison:
            before = stack.enter_context(inspected(make_disk(good, "a.raw")))
            after = stack.enter_context(inspected(make_disk(other, "b.raw")))
            return compared(snapshot(before), snapshot(after))

        yield made


def names(differences: tuple[Difference, ...]) -> list[tuple[str, str]]:
    return [(each.how.value, each.name) for each in differences]


def files(comparison: Comparison) -> dict[str, list[tuple[str, str]]]:
    return {each.owner: names(each.files) for each in comparison.owners}


def test_equal_files_have_no_differences(compare):
    comparison = compare()
    assert comparison.same
    assert comparison.owners == ()


def test_changed_packages_have_their_versions(other, compare):
    status = other / "var/lib/dpkg/status"
    text = status.read_text().replace("8.10.0-5", "8.10.0-6")
    added = "\nPackage: vim\nStatus: install ok installed\nVersion: 9\n"
    status.write_text(text.replace("Package: dpkg", "Package: dpkg2") + added)
    comparison = compare()
    assert comparison.packages == (
        Difference("dpkg", How.REMOVED, "1.21.23", ""),
        Difference("dpkg2", How.ADDED, "", "1.21.23"),
        Difference("puppet-agent", How.CHANGED, "8.10.0-5", "8.10.0-6"),
        Difference("vim", How.ADDED, "", "9"),
    )
    assert names(comparison.hooks) == [("changed", "puppet")]


def test_changed_hooks_and_services_are_reported(other, write, compare):
    (other / "usr/libexec/heat-config/hooks/puppet").unlink()
    write(other, "usr/libexec/heat-config/hooks/mine", "#!/bin/sh\n", mode=0o755)
    (other / WANTS / "ssh.service").symlink_to("/lib/systemd/system/ssh.service")
    (other / WANTS / "systemd-networkd.service").unlink()
    comparison = compare()
    assert names(comparison.hooks) == [("added", "mine"), ("removed", "puppet")]
    assert names(comparison.services) == [
        ("added", "ssh.service"),
        ("removed", "systemd-networkd.service"),
    ]
    facts = {each.name: each for each in comparison.facts}
    assert facts["faults"].after == "renderer-not-started"


def test_changed_users_are_reported(other, write, compare):
    write(other, "etc/passwd", "root:x:0:0::/root:/bin/sh\nyou:x:1001:1001::/home/you:/bin/sh\n")
    assert names(compare().users) == [("removed", "me"), ("changed", "root"), ("added", "you")]


def test_changed_files_are_grouped_by_package(other, write, compare):
    write(other, "usr/bin/puppet", "#!/bin/bash\n", mode=0o755)
    write(other, "opt/salt/bin/salt-call", "x" * 5000)
    (other / "etc/cloud/cloud.cfg").chmod(0o600)
    (other / "usr/lib/os-release").unlink()
    link = other / "usr/sbin/init"
    link.unlink()
    link.symlink_to("/lib/systemd/systemd")
    comparison = compare()
    listed = files(comparison)
    assert listed["puppet-agent"] == [("changed", "/usr/bin/puppet")]
    assert ("added", "/opt/salt/bin/salt-call") in listed["/opt/salt"]
    assert listed[NO_PACKAGE] == [
        ("changed", "/etc/cloud/cloud.cfg"),
        ("added", "/opt"),
        ("removed", "/usr/lib/os-release"),
        ("changed", "/usr/sbin/init"),
    ]
    assert comparison.owners[0].owner == "/opt/salt"
    assert (comparison.owners[0].before, comparison.owners[0].after) == (0, 5000)


def test_compiled_file_belongs_to_its_source(good, other, write, compare):
    for root in (good, other):
        write(root, "var/lib/dpkg/info/puppet-agent.list", "/usr/lib/python3/a.py\n")
    write(other, "usr/lib/python3/__pycache__/a.cpython-313.pyc", "x")
    assert ("added", "/usr/lib/python3/__pycache__/a.cpython-313.pyc") in files(compare())[
        "puppet-agent"
    ]


def test_content_of_the_same_size_counts_and_its_time_does_not(good, other, write, compare):
    for root, text in ((good, "one"), (other, "two")):
        write(root, "srv/content", text)
        write(root, "srv/time", "same")
    os.utime(good / "srv/content", (1, 1))
    os.utime(good / "srv/time", (1, 1))
    assert files(compare())[NO_PACKAGE] == [("changed", "/srv/content")]


def test_content_counts_when_its_time_is_the_same(good, other, write, compare):
    """Two builds under one SOURCE_DATE_EPOCH have such files."""
    for root, text in ((good, "one"), (other, "two")):
        os.utime(write(root, "srv/content", text), (1, 1))
    assert files(compare())[NO_PACKAGE] == [("changed", "/srv/content")]


def test_content_counts_in_a_package_of_another_version(good, other, write, compare):
    for root, text in ((good, "one"), (other, "two")):
        os.utime(write(root, "usr/bin/puppet", text, mode=0o755), (1, 1))
    status = other / "var/lib/dpkg/status"
    status.write_text(status.read_text().replace("8.10.0-5", "8.10.0-6"))
    assert files(compare())["puppet-agent"] == [("changed", "/usr/bin/puppet")]


def test_file_with_two_names_is_counted_once(good, make_disk, write):
    path = write(good, "opt/one/a", "x" * 5000)
    os.link(path, good / "opt/one/b")
    with inspected(make_disk(good)) as inspection:
        assert snapshot(inspection).sizes()["/opt/one"] == 5000


def test_times_and_all_contents_are_compared_when_exact(good, other, make_disk):
    os.utime(other / "etc/fstab", (1, 1))
    # A build that clamps times leaves this: another file of one version, with the same time.
    program = other / "usr/bin/puppet"
    changed = program.stat().st_mtime_ns
    program.write_text("#!/bin/no\n")
    os.utime(program, ns=(changed, changed))
    with (
        inspected(make_disk(good, "a.raw")) as before,
        inspected(make_disk(other, "b.raw")) as after,
    ):
        first, second = snapshot(before), snapshot(after)
        assert compared(first, second).same
        exact = compared(first, second, exact=True)
    assert files(exact) == {
        "no package": [("changed", "/etc/fstab")],
        "puppet-agent": [("changed", "/usr/bin/puppet")],
    }
    (fstab,) = next(each.files for each in exact.owners if each.owner == "no package")
    assert fstab.after == "1970-01-01T00:00:01+00:00"
