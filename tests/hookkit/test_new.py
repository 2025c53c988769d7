"""``hotplate hook new`` in an empty directory: its files pass all checks unchanged."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotplate.cli import main
from hotplate.errors import HostError, UsageError
from hotplate.hookkit.new import HookLanguage, NewHook, write_new

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
PATH = os.pathsep.join([str(TOOLS), os.environ["PATH"]])


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words, directory, **environ):
    """Run a program; return its exit status and its output."""
    done = subprocess.run(
        list(map(str, words)),
        cwd=directory,
        env={**os.environ, "PATH": PATH, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    return done.returncode, done.stdout


CASES = {
    "python": ["--lang", "python"],
    "sh": ["--lang", "sh"],
    "python-tool": ["--tool", "env", "--package", "coreutils"],
    "sh-tool": ["--tool", "env", "--lang", "sh"],
}


@pytest.mark.parametrize("case", ["python", "sh", "sh-tool"])
def test_new_contract_test_passes_unchanged(repository, case):
    assert main(["hook", "new", "my-tool", *CASES[case]]) == 0
    # Only a folder of the test is searched: other programs change their files meanwhile.
    test = repository / "tests" / "test_my_tool_contract.py"
    words = f'"check", "--changes-in", "{repository / "elements"}"'
    test.write_text(test.read_text().replace('"check"', words))
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    status, text = run(*pytest_, "--rootdir", repository, test, directory=repository)
    assert status == 0, text
    assert "2 passed" in text


@pytest.mark.parametrize("case", CASES)
def test_new_files_have_no_lint_findings(repository, capsys, case):
    assert main(["hook", "new", "my-tool", *CASES[case]]) == 0
    suffix = "sh" if case.startswith("sh") else "py"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["edit", "check", "build", "boot"]
    assert lines[1] == f"check  hotplate hook check hooks/my_tool.{suffix}"
    lint = [sys.executable, "-m", "hotplate", "lint", "elements"]
    assert run(*lint, directory=repository) == (0, "no findings in 1 elements\n")
    hook = repository / "hooks" / f"my_tool.{suffix}"
    assert hook.stat().st_mode & 0o777 == 0o755
    assert "EDIT" in hook.read_text()
    ruff = ["ruff", "check", "--isolated", "--line-length", "100", *repository.rglob("*.py")]
    status, text = run(*ruff, directory=repository)
    assert status == 0, text
    if suffix == "sh" and shutil.which("shellcheck"):
        assert run("shellcheck", hook, directory=repository) == (0, "")
    left = [path for path in repository.rglob("*") if path.is_file()]
    left = [path for path in left if b"@name@" in path.read_bytes()]
    assert left == []


def test_new_boot_test_uses_the_plugin(repository):
    """It is collected, and skipped without an image."""
    write_new(NewHook("my-tool"), repository)
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    test = repository / "tests" / "test_my_tool_boot.py"
    status, text = run(*pytest_, "--rootdir", repository, test, directory=repository)
    assert (status, "1 skipped" in text) == (0, True), text


def test_printed_build_command_is_accepted(repository):
    write_new(NewHook("my-tool", package="make"), repository)
    words = ["--element-path", "elements", "--group", "my-tool", "-o", "my-tool.qcow2"]
    hotplate = [sys.executable, "-m", "hotplate", "build", "--dry-run"]
    status, text = run(*hotplate, *words, directory=repository)
    assert status == 0, text
    assert "heat-config-my-tool" in text


def test_existing_files_are_not_overwritten(repository, capsys):
    element = repository / "elements" / "heat-config-mine"
    element.mkdir(parents=True)
    assert main(["hook", "new", "mine"]) == 2
    assert '"elements/heat-config-mine" is there already; nothing was written' in (
        capsys.readouterr().err
    )
    assert sorted(repository.rglob("*")) == [element.parent, element]
    element.rmdir()
    assert main(["hook", "new", "mine"]) == 0
    (repository / "hooks" / "mine.py").write_text("my work")
    assert main(["hook", "new", "mine"]) == 2
    assert (repository / "hooks" / "mine.py").read_text() == "my work"


@pytest.mark.parametrize(
    ("name", "more", "sentence"),
    [
        ("Mine", {}, '"Mine" cannot be a group; expected a letter'),
        ("../mine", {}, "cannot be a group; expected a letter"),
        ("a--b", {}, "cannot be a group; expected a letter"),
        ("a" * 41, {}, "40 at most"),
        ("lib", {}, "the name means something else"),
        ("script", {}, 'has an element "heat-config-script" already'),
        ("mine", {"tool": "/bin/sh"}, '"/bin/sh" is not the name of a program'),
        ("mine", {"tool": 'a"b'}, "is not the name of a program"),
        ("mine", {"package": "a b"}, '"a b" is not the name of a package'),
    ],
)
def test_invalid_names_are_refused(tmp_path, name, more, sentence):
    with pytest.raises(UsageError) as raised:
        write_new(NewHook(name, **more), tmp_path)
    assert sentence in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_no_file(tmp_path, monkeypatch):
    """A second try would be refused because of the first one's files."""

    def chmod(self: Path, mode: int) -> None:
        if self.suffix == ".yaml":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "chmod", chmod)
        with pytest.raises(HostError, match="No space left on device; nothing was written"):
            write_new(NewHook("awk"), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert write_new(NewHook("awk"), tmp_path)


def test_package_is_installed_in_the_image(tmp_path):
    write_new(NewHook("mine", "make", "make", HookLanguage.SHELL), tmp_path)
    element = tmp_path / "elements" / "heat-config-mine"
    assert (element / "package-installs.yaml").read_text() == "make:\n"
    assert (element / "element-deps").read_text().split() == ["heat-config", "package-installs"]
