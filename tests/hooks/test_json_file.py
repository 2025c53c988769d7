"""The json-file hook."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

VALUES = ["text", "", "ünïcode ☃ 🍲", "a\0b", None, True, 7, 1.5, [1, None], {"a": {"b": []}}]


@pytest.fixture
def json_file(hook_of):
    """Run the json-file hook on a config; keywords go to make_deployment."""
    return hook_of("json-file")


def mode(path: Path) -> int:
    """Return the permission bits of *path*."""
    return stat.S_IMODE(path.stat().st_mode)


def test_data_of_every_json_type_is_written(json_file, tmp_path: Path):
    files = {str(tmp_path / str(number)): value for number, value in enumerate(VALUES)}
    inputs = {f"unused_{number}": value for number, value in enumerate(VALUES)}
    answer = json_file(files, inputs=inputs)
    assert (answer.status, answer.stdout, answer.stderr) == (0, "", "")
    assert {name: json.loads(Path(name).read_text()) for name in files} == files


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_new_files_have_the_umask_and_can_be_reached(json_file, tmp_path: Path, umask, expected):
    """As with heat-agents, whose hook opens the file; there, the last directory was 0700."""
    path = tmp_path / "new" / "deep" / "file.json"
    before = os.umask(umask)
    try:
        assert json_file({str(path): {"b": 1, "a": 2}}).status == 0
    finally:
        os.umask(before)
    assert path.read_text() == '{\n    "a": 2,\n    "b": 1\n}'
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (expected, 0o755, 0o755)


@pytest.mark.defect("H9")
def test_mode_is_the_options_or_that_of_an_existing_file(json_file, tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("a much longer text than what comes")
    path.chmod(0o640)
    json_file({str(path): 1})
    assert (path.read_text(), mode(path)) == ("1", 0o640)
    json_file({str(path): 2}, options={"mode": "0644"})
    assert (path.read_text(), mode(path)) == ("2", 0o644)


@pytest.mark.root
def test_owner_of_an_existing_file_stays(json_file, tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("")
    os.chown(path, 1, 2)
    path.chmod(0o640)
    json_file({str(path): 1})
    assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (1, 2, 0o640)


def test_link_is_followed(json_file, tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    json_file({str(tmp_path / "link"): 1})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "1"


@pytest.mark.parametrize("bad", ["relative", "", "/tmp/", "/tmp", "/nul\0", "/dev/null"], ids=repr)
def test_bad_path_is_named_and_nothing_is_written(json_file, tmp_path: Path, bad):
    answer = json_file({str(tmp_path / "good"): 1, bad: "planted"})
    assert answer.status == 1
    assert json.dumps(bad) in answer.stderr
    assert "planted" not in answer.stderr
    assert not (tmp_path / "good").exists()


def test_path_below_a_file_is_a_sentence(json_file, tmp_path: Path):
    (tmp_path / "file").write_text("")
    answer = json_file({str(tmp_path / "file" / "below"): 1})
    assert answer.status == 1
    assert str(tmp_path / "file") in answer.stderr


@pytest.mark.parametrize("given", ["rw", 644.5, "09", "", [], "99999"], ids=repr)
def test_bad_mode_is_a_sentence(json_file, tmp_path: Path, given):
    answer = json_file({str(tmp_path / "file"): 1}, options={"mode": given})
    assert answer.status == 1
    assert '"mode"' in answer.stderr
    assert not (tmp_path / "file").exists()


def test_config_may_be_json_text_or_empty(json_file, tmp_path: Path):
    assert json_file(json.dumps({str(tmp_path / "file"): [1]})).status == 0
    assert json.loads((tmp_path / "file").read_text()) == [1]
    for nothing in ("", None, {}):
        assert json_file(nothing).status == 0


def test_two_megabytes_and_parallel_runs_succeed(json_file, tmp_path: Path):
    def one(number: int) -> int:
        return json_file({str(tmp_path / "same"): [number] * 300_000}).status

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(6))) == [0] * 6
    data = json.loads((tmp_path / "same").read_text())
    assert len(data) == 300_000
    assert len(set(data)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["same"]
