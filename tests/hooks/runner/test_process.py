"""Programs that are looked for in PATH."""

import shutil
import sys

import pytest

from .conftest import HOOKS

sys.path.insert(0, str(HOOKS))


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Two directories, of which the first is the current one."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for program, mode in (("both", 0o755), (f"only-{name}", 0o755), (f"no-{name}", 0o644)):
            (tmp_path / name / program).write_text("")
            (tmp_path / name / program).chmod(mode)
    (tmp_path / "one" / "only-two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    return tmp_path


@pytest.mark.parametrize("path", ["{0}/one:{0}/two", "/none:{0}/two:", ":{0}/two", "", None])
def test_where_a_program_is(programs, monkeypatch, path):
    from heat_config import process

    if path is None:
        monkeypatch.delenv("PATH")
    else:
        monkeypatch.setenv("PATH", path.format(programs))
    names = [
        "both",
        "only-one",
        "only-two",
        "no-one",
        "no-two",
        "none",
        "",
        "sh",
        "/bin/sh",
        "/bin",
    ]
    names += ["./only-one", "./no-one", "../two/both", "/none/sh"]
    for name in names:
        assert process.path_of(name) == shutil.which(name), name
