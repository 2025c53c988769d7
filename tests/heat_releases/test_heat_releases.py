"""``--heat``: a release that is not installed runs in an environment of its own.

The environments here are made of real wheels, with nothing in them, by the real pip.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import hotplate
from hotplate import cli, heat_releases
from hotplate.errors import UsageError
from hotplate.settings import HeatChoice

RELEASES = [each for each in HeatChoice if each is not HeatChoice.INSTALLED]
OTHER = next(each for each in RELEASES if not heat_releases.is_installed(each))
COMMAND = """
import sys
from pathlib import Path
import hotplate
from hotplate import cli, heat_releases
heat_releases.LOCKS = Path(sys.argv.pop(1))
sys.exit(cli.main())
"""
#: Prints where a command runs; pip's output is not shown.
WHERE = "import sys; print(sys.prefix, *sys.orig_argv[1:], file=sys.stderr)\n"


def wheel(folder: Path, name: str, version: str, **files: str) -> Path:
    """Write a wheel (https://packaging.python.org/en/latest/specifications/
    binary-distribution-format/); return it."""
    about = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": "",
            **files,
        }.items():
            archive.writestr(file, text)
    return path


class Host:
    """A host with an empty cache, and an index of three wheels."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.index = folder / "index"
        self.locks = folder / "locks"
        for each in (self.index, self.locks):
            each.mkdir(parents=True)
        wheels = [
            wheel(self.index, "setuptools", "80.0"),
            wheel(self.index, "pbr", "7.0"),
            wheel(self.index, "openstack_heat", f"{OTHER.value}.0.2", **{"where.pth": WHERE}),
        ]
        lines = []
        for each in wheels:
            name, version, *_ = each.name.split("-")
            digest = hashlib.sha256(each.read_bytes()).hexdigest()
            lines.append(f"{name}=={version} \\\n    --hash=sha256:{digest}\n")
        (self.locks / f"{OTHER.value}.txt").write_text("".join(lines))

    @property
    def environments(self) -> list[Path]:
        return [*self.cache.glob("heat/*")]

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        pip = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.index),
        }
        return subprocess.run(
            [sys.executable, "-c", COMMAND, self.locks, *words],
            env={**os.environ, **pip, "HOTPLATE_CACHE": str(self.cache), **more},
            cwd=self.index,
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_command_goes_on_in_an_environment_that_is_made_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heat_releases, "LOCKS", host.locks)
    folder = heat_releases.environment(OTHER, host.cache)
    # The rest of a command that was killed while it made the environment.
    (folder / "lib").mkdir(parents=True)
    first = host.run("up", "no.qcow2", "--heat", OTHER.value)
    assert f'making the environment of Heat {OTHER.value} in "{folder}"' in first.stderr
    assert f"{folder} -P -m hotplate up no.qcow2 --heat {OTHER.value}\n" in first.stderr
    again = host.run("up", "no.qcow2", HOTPLATE_HEAT=OTHER.value)
    assert "making" not in again.stderr
    assert f"{folder} -P -m hotplate up no.qcow2\n" in again.stderr
    (link,) = folder.glob("lib/python*/site-packages/hotplate")
    assert link.resolve() == Path(hotplate.__file__).parent
    # pip knows no files of hotplate there, which are links.
    pip = (folder / "bin" / "python", "-m", "pip", "uninstall", "-y", "hotplate")
    refused = subprocess.run(pip, capture_output=True, text=True)
    assert refused.returncode
    assert (link / "__init__.py").is_file()
    # Without a change of the lock it stays, and with one it is no longer used.
    (host.locks / f"{OTHER.value}.txt").write_text("")
    assert heat_releases.environment(OTHER, host.cache) != folder


def test_environment_that_cannot_be_made_leaves_nothing(host: Host) -> None:
    done = host.run("test", "no.qcow2", "--heat", OTHER.value, PIP_FIND_LINKS="")
    assert done.returncode == 3
    sentence = done.stderr.splitlines()[1]
    assert sentence.startswith(
        f"hotplate test: the environment of Heat {OTHER.value} cannot be made: pip: ERROR: "
    )
    assert "No matching distribution found for setuptools==80.0" in sentence
    assert "Traceback" not in done.stderr
    assert host.environments == []


def test_package_with_another_hash_is_refused(host: Host) -> None:
    wheel(host.index, "openstack_heat", f"{OTHER.value}.0.2", **{"evil.pth": "import evil\n"})
    done = host.run("up", "no.qcow2", "--heat", OTHER.value)
    assert done.returncode == 3
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert host.environments == []


@pytest.mark.parametrize("word", ["25", "x", ""])
@pytest.mark.parametrize("verb", [("test",), ("up", "image"), ("doctor",)])
def test_release_without_a_lock_is_refused(
    verb: Sequence[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*verb, "--heat", word])
    assert ended.value.code == 2
    assert f"invalid choice: '{word}' (choose from " in capsys.readouterr().err


def test_release_of_the_environment_is_refused_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOTPLATE_HEAT", "25")
    assert cli.main(["test", "no.qcow2"]) == 2
    expected = f"expected one of installed, {', '.join(each.value for each in RELEASES)}"
    assert f'setting "heat" from HOTPLATE_HEAT is "25"; {expected}' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--on", "tcp://127.0.0.1:9"), "--heat is for this host, and not for --on"),
        (("--os-cloud", "x"), "--heat is for machines of this host, and not for --os-cloud"),
    ],
)
def test_release_is_refused_where_heat_runs_elsewhere(
    words: Sequence[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["test", "no.qcow2", "--heat", OTHER.value, *words]) == 2
    assert why in capsys.readouterr().err


def test_process_with_another_release_is_refused(tmp_path: Path) -> None:
    """So pytest does not test with a release that nobody asked for."""
    heat_releases.check(HeatChoice.INSTALLED, tmp_path)
    with pytest.raises(UsageError) as refused:
        heat_releases.check(OTHER, tmp_path)
    installed = heat_releases.installed_version()
    assert f'this process has Heat {installed}, and the setting "heat" is {OTHER.value}' in str(
        refused.value
    )
    python = heat_releases.environment(OTHER, tmp_path) / "bin" / "python"
    assert f"{python} -m pytest" in str(refused.value)


@pytest.mark.parametrize("release", RELEASES, ids=lambda each: each.value)
def test_each_release_has_a_complete_lock(release: HeatChoice) -> None:
    lock = (heat_releases.LOCKS / f"{release.value}.txt").read_text()
    pinned = re.findall(r"^([a-z0-9._-]+)==(\S+)(?: ;[^\\]+)? \\\n +--hash=sha256:", lock, re.M)
    names = dict(pinned)
    # Each package has hashes, and no line names an index.
    lines = [line for line in lock.splitlines() if line and not line.startswith(("#", " "))]
    assert len(pinned) == len(lines)
    assert names["openstack-heat"].startswith(f"{release.value}.")
    assert {"pbr", "setuptools", "waitress", "diskimage-builder"} <= names.keys()


def test_newest_release_has_the_versions_of_the_main_lock() -> None:
    """Its lock would be a set of versions that no test has seen otherwise."""
    main = Path(__file__).parents[2] / "tools" / "constraints.txt"
    tested, newest = (
        set(re.findall(r"^[a-z0-9._-]+==\S+", file.read_text(), re.MULTILINE))
        for file in (main, heat_releases.LOCKS / f"{RELEASES[-1].value}.txt")
    )
    assert newest <= tested, "run tools/lock"
