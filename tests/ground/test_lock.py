"""tools/constraints.txt is complete, current and for everyone; its programs find what changed."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "tools" / "constraints.txt").read_text()
HERE = default_environment()["python_version"]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch):
    """Return the names of a program of tools/."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return lambda name: runpy.run_path(str(ROOT / "tools" / name))


def requirements() -> list[Requirement]:
    """Return all that pyproject.toml asks for, also in extras and groups, but hotplate itself."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [
        read["build-system"]["requires"],
        read["project"]["dependencies"],
        *read["project"]["optional-dependencies"].values(),
        *read["dependency-groups"].values(),
    ]
    found = [Requirement(line) for each in lists for line in each]
    return [each for each in found if each.name != "hotplate"]


def locked(python: str = HERE) -> dict[str, str]:
    """Return the lock's versions by package, as on this host with a release of Python."""
    here = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}
    lines = re.findall(r"^[a-z0-9][^\\\n]*", LOCK, re.MULTILINE)
    found = [
        each for each in map(Requirement, lines) if not each.marker or each.marker.evaluate(here)
    ]
    versions = {each.name: str(each.specifier).removeprefix("==") for each in found}
    assert len(versions) == len(found), "a package has two versions"
    return versions


def unmet(wanted: list[Requirement], versions: dict[str, str]) -> list[str]:
    """Return the requirements that the versions do not meet."""
    names = [canonicalize_name(each.name) for each in wanted]
    pairs = zip(wanted, names, strict=True)
    return [
        str(each)
        for each, name in pairs
        if name not in versions or not each.specifier.contains(versions[name], prereleases=True)
    ]


def test_lock_has_versions_and_hashes_and_no_address():
    block = r"[a-z0-9-]+==[\w.+-]+(?: ; [\w .'<>=!()]+)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    first, _, rest = LOCK.partition("\n")
    assert first.startswith("# ") and "://" not in first
    assert re.sub(block, "", rest) == ""


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_lock_meets_the_requirements_of_the_project(python):
    assert unmet(requirements(), locked(python)) == [], "pyproject.toml has changed: run tools/lock"


def needs(name: str, extras: set[str]) -> list[Requirement]:
    """Return an installed package's requirements on this host."""
    found = map(Requirement, metadata.requires(name) or ())
    return [
        each
        for each in found
        if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in extras | {""})
    ]


def test_lock_has_what_the_packages_need_in_turn():
    versions, seen, left = locked(), set(), requirements()
    while left:
        each = left.pop()
        if (key := (canonicalize_name(each.name), *sorted(each.extras))) not in seen:
            seen.add(key)
            wanted = needs(each.name, each.extras)
            assert unmet(wanted, versions) == [], each.name
            left += wanted
    assert len(seen) > 200


def test_set_up_installs_the_locked_versions():
    installed = {canonicalize_name(each.name): each.version for each in metadata.distributions()}
    others = {
        name: (version, installed[name])
        for name, version in locked().items()
        if name in installed and installed[name] != version
    }
    assert others == {}, "tools/setup test installs the lock's"


def test_lock_has_files_for_other_platforms_too():
    few = []
    for each in metadata.distributions():
        name = canonicalize_name(each.name)
        compiled = "Root-Is-Purelib: false" in (each.read_text("WHEEL") or "")
        # ovs has no wheel and is built on each host.
        if compiled and name in locked() and name != "ovs":
            (block,) = re.findall(rf"^{name}==.*\n(?: .*\n)+", LOCK, re.MULTILINE)
            few += [name] if block.count("--hash") < 8 else []
    assert few == []


def test_lock_is_made_of_the_files_of_the_main_index(tool: Any, monkeypatch: pytest.MonkeyPatch):
    """Another index may have files of its own, whose hashes nobody else could fetch."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "https://main.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://a.example https://b.example")
    monkeypatch.setenv("UV_FIND_LINKS", "/tmp/wheels")
    environment = tool("packages.py")["environment"]
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS")
    everything = ["https://main.example/simple", "https://a.example https://b.example"]
    with_others, main_only = environment(), environment(main_index_only=True)
    assert [with_others[name] for name in names[:2]] == everything
    assert [main_only.get(name) for name in names] == [everything[0], None, None]


def test_folder_of_packages_that_is_not_there_is_left_out(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As pip does, which warns; uv would end."""
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} {tmp_path}/none https://a.example/wheels")
    environment = tool("packages.py")["environment"]()
    assert environment["UV_FIND_LINKS"] == f"{tmp_path},https://a.example/wheels"


def test_lock_names_each_change(tool: Any):
    old = {"same": "1", "newer": "1", "gone": "2"}
    new = {"same": "1", "newer": "2", "more": "3"}
    assert list(tool("lock")["changes"](old, new)) == [
        "removed  gone 2",
        "added    more 3",
        "changed  newer 1 -> 2",
    ]


OPENSTACK = "oslo-db==18.1.1\noslo-log==8.3.2\noslo-utils==10.2.0\nsqlalchemy==2.1.9\n"


def test_openstack_packages_become_as_new_as_upper_constraints(tool: Any):
    """openstack/requirements writes ``===``, dots in names, and markers without spaces."""
    upper = "oslo.db===18.1.2\noslo.log===8.3.1;python_version=='3.12'\nSQLAlchemy===2.0.52\n"
    names = tool("lock")
    assert names["caps"](OPENSTACK, upper).splitlines() == [
        "oslo-db<=18.1.2",
        "oslo-log<=8.3.2",
        "oslo-utils<=10.2.0",
    ]


def test_openstack_packages_get_the_fixes_of_their_stable_branches(tool: Any):
    names = tool("lock")
    assert names["caps"](OPENSTACK).splitlines() == [
        "oslo-db<18.2",
        "oslo-log<8.4",
        "oslo-utils<10.3",
    ]


def test_older_release_gets_the_fixes_of_openstack_packages_alone(
    tool: Any, monkeypatch: pytest.MonkeyPatch
):
    names = tool("lock")
    monkeypatch.setitem(names["main"].__globals__, "compiled", lambda *_, **__: OPENSTACK)
    assert names["as_of"](26).splitlines() == [
        "sqlalchemy==2.1.9",
        "oslo-db<18.2",
        "oslo-log<8.4",
        "oslo-utils<10.3",
    ]


def test_newer_openstack_package_that_is_left_is_named(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Where none is named, no upper constraint can be newer than the lock."""

    def compiled(*_: str, constraints: str = "", **__: str) -> str:
        return OPENSTACK if constraints else "oslo-db==18.1.1\noslo-log==9.0.0\nsqlalchemy==3.0\n"

    names = tool("lock")
    for name, fake in (("compiled", compiled), ("write", lambda *_: None)):
        monkeypatch.setitem(names["main"].__globals__, name, fake)
    monkeypatch.setattr(sys, "argv", ["lock", "--renew"])
    assert names["main"]() == 0
    assert capsys.readouterr().out == "left     oslo-log 8.3.2: 9.0.0 may not go with Heat 27\n"


def wheel(folder: Path, name: str, version: str, requires: str = "") -> str:
    """Write a wheel without files (https://packaging.python.org/en/latest/specifications/
    binary-distribution-format/); return its line of a lock."""
    folder.mkdir(exist_ok=True)
    about, path = f"{name}-{version}.dist-info", folder / f"{name}-{version}-py3-none-any.whl"
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if requires:
        described += f"Requires-Dist: {requires}\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{about}/METADATA", described)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"


@pytest.mark.parametrize(
    "install",
    [
        (sys.executable, "-m", "pip", "--isolated", "--no-cache-dir", "install"),
        (Path(sys.executable).with_name("uv"), "--no-config", "--no-cache", "pip", "install"),
    ],
    ids=["pip", "uv"],
)
def test_locked_installation_is_the_same_on_another_day(install: Any, tmp_path: Path):
    """By each program of tools/setup, into an empty folder, without a cache."""
    first, second, lock = (tmp_path / name for name in ("first", "second", "constraints.txt"))
    for day in (first, second):
        lines = [wheel(day, "web", "1.0", "bus>=1"), wheel(day, "bus", "1.0")]
    for name, requires in (("web", "bus>=1"), ("bus", "more")):
        wheel(second, name, "2.0", requires)
    wheel(second, "more", "1.0")
    lock.write_text("".join(lines))

    def installed(index: Path, *words: Any) -> list[str]:
        target = tmp_path / f"{index.name}-{len(words)}"
        command = [*install, "--no-index", "--find-links", index, "--target", target, *words]
        environment = {
            name: text for name, text in os.environ.items() if name[:3] not in ("PIP", "UV_")
        }
        subprocess.run([*command, "web"], env=environment, check=True, capture_output=True)
        return sorted(each.name for each in target.glob("*.dist-info"))

    locked = ["bus-1.0.dist-info", "web-1.0.dist-info"]
    assert installed(first, "-c", lock) == installed(second, "-c", lock) == locked
    assert len(installed(second)) == 3


@pytest.mark.parametrize("culprit", range(5))
def test_package_that_breaks_is_found(culprit, tool: Any):
    names = [f"package{number}" for number in range(5)]
    found = tool("unlocked")["first_breaking"](names, lambda back: names[culprit] in back)
    assert found == names[culprit]
