"""Programs of root's that write into an application's directory, which swaps names meanwhile.

The swap is made by an audit hook (PEP 578) in the program itself, just before one of its calls, so
that each race is won each time.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from programs import completed

pytestmark = pytest.mark.root

#: The user id of the application.
APPLICATION = 65534

# Run a program; at its first call of a kind, put a link of the application in place of a name.
RUNNER = f"""
import os, runpy, sys
program, kind, name, target = sys.argv[1:]
done = []

def is_call(event, arguments):
    if kind != "create":
        return event == kind
    # The file itself, or a temporary one of its name or of the program's.
    names = ("file", ".file", ".cfn-init")
    return (
        event == "open"
        and isinstance(arguments[0], str)
        and os.path.basename(arguments[0]).startswith(names)
        and arguments[2] & os.O_EXCL
    )

def swap(event, arguments):
    if done or not is_call(event, arguments) or not os.path.lexists(name):
        return
    done.append(event)
    os.rename(name, name + ".moved")
    os.symlink(target, name)
    os.lchown(name, {APPLICATION}, {APPLICATION})
    print("swapped", file=sys.stderr)

sys.addaudithook(swap)
sys.argv = [program]
runpy.run_path(program, run_name="__main__")
"""


class Application:
    """A directory of the application's, and the files of the rest of the system."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.conf = self.home / "conf"
        self.file = self.conf / "file"
        self.conf.mkdir(parents=True)
        self.file.write_text("old")
        for path in (self.home, self.conf, self.file):
            os.chown(path, APPLICATION, APPLICATION)
        self.system = root / "system"
        self.system.mkdir(mode=0o700)
        self.secret = self.system / "secret"
        self.secret.write_text("secret")
        self.secret.chmod(0o600)

    def seen(self) -> dict[str, tuple[int, int, str]]:
        """Return modes, owners and contents outside of the application's directory."""
        return {
            str(path): (
                path.lstat().st_mode,
                path.lstat().st_uid,
                path.read_text() if path.is_file() else "",
            )
            for path in (self.system, *self.system.rglob("*"))
        }


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return Application(tmp_path)


@pytest.fixture
def run(hooks_dir: Path, tmp_path: Path, make_deployment):
    """Write the application's files with a program, while a name is swapped at a call."""

    def run(program: str, config: Any, *, at: str, name: Path, target: Path) -> str:
        environment = {"HEAT_CONFIG_LIB": str(hooks_dir), "PATH": os.environ["PATH"]}
        data = ""
        if program == "json_file.py":
            data = json.dumps(make_deployment(config, group="json-file"))
        else:
            metadata = tmp_path / "metadata"
            metadata.write_text(json.dumps({"AWS::CloudFormation::Init": {"config": config}}))
            environment["HEAT_CFN_INIT_METADATA"] = str(metadata)
            environment["HEAT_CFN_LOG_DIR"] = str(tmp_path)
        done = completed(
            [sys.executable, "-I", "-c", RUNNER, hooks_dir / program, at, name, target],
            input=data,
            env=environment,
        )
        assert "swapped" in done.stderr, done.stderr
        return done.stdout + done.stderr

    return run


def archive(path: Path) -> str:
    """Return the address of a tar archive with a directory and a file in it."""
    with tarfile.open(path, "w") as tar:
        directory = tarfile.TarInfo("made")
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(directory)
        member = tarfile.TarInfo("made/file")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"new"))
    return path.as_uri()


def test_mode_and_owner_of_other_files_stay(application, run):
    """The existing file is the application's, and becomes a link after it was replaced."""
    before = application.seen()
    config = {str(application.file): "new"}
    run("json_file.py", config, at="os.chown", name=application.file, target=application.secret)
    assert application.seen() == before


@pytest.mark.parametrize("program", ["json_file.py", "cfn-init"])
def test_file_is_written_into_no_other_directory(application, run, program):
    before = application.seen()
    config: Any = {str(application.file): "new"}
    if program == "cfn-init":
        config = {"files": {str(application.file): {"content": "new", "owner": "nobody"}}}
    run(program, config, at="create", name=application.conf, target=application.system)
    assert application.seen() == before
    assert (application.home / "conf.moved" / "file").read_text().strip('"') == "new"


def test_mode_of_a_new_directory_is_set_on_no_other_file(application, run):
    before = application.seen()
    made = application.conf / "made"
    config = {str(made / "file"): "new"}
    run("json_file.py", config, at="os.chmod", name=made, target=application.secret)
    assert application.seen() == before


@pytest.mark.parametrize(("at", "target"), [("os.chmod", "secret"), ("create", "")])
def test_archive_is_unpacked_into_no_other_directory(application, run, tmp_path, at, target):
    before = application.seen()
    config = {"sources": {str(application.conf): archive(tmp_path / "a.tar")}}
    run(
        "cfn-init",
        config,
        at=at,
        name=application.conf / "made",
        target=application.system / target,
    )
    assert application.seen() == before


@pytest.mark.parametrize("what", ["file", "conf"])
def test_link_of_the_application_to_a_file_of_root_is_refused(application, hook_of, what):
    """heat-agents follows it, and replaces the content of any file."""
    before = application.seen()
    name = getattr(application, what)
    name.rename(f"{name}.moved")
    name.symlink_to(application.secret if what == "file" else application.system)
    os.lchown(name, APPLICATION, APPLICATION)
    answer = hook_of("json-file")({str(application.home / "good"): 1, str(application.file): "new"})
    assert answer.status == 1
    assert "a link of user 65534" in answer.stderr and "nothing was written" in answer.stderr
    assert str(application.file) in answer.stderr
    assert application.seen() == before
    assert not (application.home / "good").exists()


@pytest.mark.parametrize("kind", ["absolute", "relative"])
@pytest.mark.parametrize("what", ["file", "conf"])
def test_link_of_the_application_to_its_own_file_is_followed(application, hook_of, what, kind):
    """As with heat-agents: ``current -> releases/7``, and files that releases share."""
    name, moved = getattr(application, what), application.home / "moved"
    name.rename(moved)
    name.symlink_to(moved if kind == "absolute" else os.path.relpath(moved, name.parent))
    os.lchown(name, APPLICATION, APPLICATION)
    assert hook_of("json-file")({str(application.file): "new"}).status == 0
    assert name.is_symlink()
    written = moved if what == "file" else moved / "file"
    assert written.read_text() == '"new"'
    assert written.stat().st_uid == APPLICATION


def test_directory_that_became_a_link_is_refused(application, run):
    """A name that exists before it is opened is judged by its state at the opening."""
    before = application.seen()
    made = application.conf / "made"
    made.mkdir()
    config = {str(made / "deep" / "file"): "new"}
    printed = run("json_file.py", config, at="os.mkdir", name=made, target=application.system)
    assert application.seen() == before
    assert "Traceback" not in printed
