"""The wheel outside a checkout, as a user gets it from pip.

In each run of CI only the wheel is installed, beside the existing packages. The long tests also
install its dependencies from the package index, into an empty environment.
"""

from __future__ import annotations

import email
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def run(*words: str | Path, cwd: Path, seconds: float = 300) -> str:
    """Run a program to its end with an environment of its own; return its output."""
    path = f"{Path(words[0]).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    kept = {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
    # Each test's directory is its home, except for files fetched only once.
    kept |= {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
    environ = {**kept, "PATH": path, "HOME": str(cwd), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        words, cwd=cwd, env=environ, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel, built from the source distribution as for a release, and that distribution."""
    directory = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT)
    assert "Successfully built" in run(*build, cwd=ROOT)
    return sorted(directory.iterdir(), key=lambda path: path.suffix != ".whl")


def beside_what_is_here(directory: Path, wheel: Path) -> None:
    """Install only the wheel; its dependencies are those of this Python."""
    venv.create(directory, with_pip=False)
    run(*PIP, "--python", directory, "install", "-q", "--no-deps", wheel, cwd=directory)
    (packages,) = directory.glob("lib/python3*/site-packages")
    here = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    # A line of a .pth file adds a directory to the import path; .pth files in that one are not
    # read, so the checkout installed there stays out.
    (packages / "here.pth").write_text("\n".join(sorted(here)) + "\n")


def with_all_it_needs(directory: Path, wheel: Path) -> None:
    """Install the wheel and all its dependencies, as locked, into an empty environment."""
    venv.create(directory, with_pip=False)
    # Compiling takes a third of the time, and each module is imported only a few times here.
    install = (*PIP, "--python", directory, "install", "-q", "--no-compile")
    run(*install, "--no-deps", wheel, cwd=directory)
    lock = directory / "share/hotplate/constraints.txt"
    run(*install, "-c", lock, "hotplate", cwd=directory, seconds=900)


@pytest.fixture(
    scope="module",
    params=[
        beside_what_is_here,
        pytest.param(with_all_it_needs, marks=[pytest.mark.long, pytest.mark.network]),
    ],
    ids=lambda install: install.__name__,
)
def programs(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    distributions: list[Path],
) -> Path:
    """The programs of an environment with the wheel."""
    directory = tmp_path_factory.mktemp("environment")
    request.param(directory, distributions[0])
    return directory / "bin"


@pytest.fixture
def wheel_hook() -> Any:
    """The module of the wheel's build hook."""
    spec = importlib.util.spec_from_file_location("wheel", ROOT / "docs" / "wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def programs_below(directory: Path) -> Iterator[str]:
    for path in directory.rglob("*"):
        if path.is_file() and os.access(path, os.X_OK):
            yield str(path.relative_to(directory))


def test_distributions_pass_twine_check(distributions: list[Path], tmp_path: Path):
    assert [path.suffix for path in distributions] == [".whl", ".gz"]
    check = (sys.executable, "-m", "twine", "check", "--strict", *distributions)
    assert "WARNING" not in run(*check, cwd=tmp_path)


def test_wheel_has_a_bill_of_its_requirements(distributions: list[Path]):
    """In the directory of PEP 770, with each requirement of the wheel's metadata."""
    with zipfile.ZipFile(distributions[0]) as wheel:
        (bill,) = (name for name in wheel.namelist() if ".dist-info/sboms/" in name)
        text = wheel.read(bill).decode()
        (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        needed = email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist")
    assert bill.endswith(".dist-info/sboms/hotplate.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    name, version = distributions[0].name.split("-")[:2]
    assert document["metadata"]["component"]["purl"] == f"pkg:pypi/{name}@{version}"
    listed = {each["properties"][0]["value"] for each in document["components"]}
    assert listed == {each for each in needed if "extra ==" not in each}


def test_bill_has_the_versions_of_the_lock(wheel_hook: Any):
    locked = """\
argcomplete==3.6.3 \\
    --hash=sha256:00
numpy==2.2.0 ; python_full_version < '3.12'
numpy==2.3.0 ; python_full_version >= '3.12'
ruff==0.14.0
"""
    words = ["argcomplete>=3", "NumPy>=2", "Jinja2>=3.1"]
    text = wheel_hook.bill("0.1.0", words, locked=locked)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == wheel_hook.bill("0.1.0", words, locked=locked)
    assert [each["purl"] for each in json.loads(text)["components"]] == [
        "pkg:pypi/jinja2",
        "pkg:pypi/numpy@2.2.0",
        "pkg:pypi/numpy@2.3.0",
        "pkg:pypi/argcomplete@3.6.3",
    ]


def test_installed_wheel_is_complete(programs: Path, tmp_path: Path):
    hotplate = programs / "hotplate"
    assert run(hotplate, "--version", cwd=tmp_path).startswith("hotplate ")
    assert "NAME.manifest.json" in run(hotplate, "inspect", "--help", cwd=tmp_path)
    for words, ours in (([], ROOT / "elements"), (["--hooks"], ROOT / "hooks")):
        installed = Path(run(hotplate, "elements-path", *words, cwd=tmp_path).strip())
        assert installed.is_relative_to(programs.parent)
        assert sorted(programs_below(installed)) == sorted(programs_below(ours))
    schema = "from hotplate.image import manifest as m; print(m.schema()['title'], m.__file__)"
    printed = run(programs / "python", "-c", schema, cwd=tmp_path)
    assert "NAME.manifest.json" in printed
    assert f" {programs.parent}/" in printed
    assert "hotplate test" in (programs.parent / "share/man/man1/hotplate.1").read_text()
    lock = "share/hotplate/constraints.txt"
    assert (programs.parent / lock).read_text() == (ROOT / "tools/constraints.txt").read_text()
    assert "--pause-on-fail" in run(programs / "python", "-m", "pytest", "--help", cwd=tmp_path)


def test_new_hook_works_outside_a_checkout(programs: Path, tmp_path: Path):
    hotplate = programs / "hotplate"
    run(hotplate, "hook", "new", "my-tool", "--lang", "sh", cwd=tmp_path)
    words = ["hook", "check", "--changes-in", tmp_path / "elements", "hooks/my_tool.sh"]
    if any(programs.parent.glob("lib/python3*/site-packages/here.pth")):
        # The long test checks the whole contract.
        words += ["--line", "answer"]
    assert "0 failed" in run(hotplate, *words, cwd=tmp_path)
    (tmp_path / "config").write_text("echo hello\n")
    words = ["hook", "run", "--config", "config", "--changes-in", tmp_path / "tests"]
    assert "COMPLETE" in run(hotplate, *words, "hooks/my_tool.sh", cwd=tmp_path)
    assert "no findings in 1 elements" in run(hotplate, "lint", cwd=tmp_path)
    tests = [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    printed = run(*tests, "tests", "-k", "answers or deployed", cwd=tmp_path)
    assert "1 passed, 1 skipped" in printed
