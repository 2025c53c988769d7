"""The scripts of a directory, and their order, beside dib-run-parts itself."""

import os
from pathlib import Path

from heat_agent.refresh.scripts import environment_files, scripts
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import completed

from .conftest import THEIRS

NAME = st.text("019-_aAzZ.", min_size=1, max_size=6).filter(lambda name: name.strip("."))


@settings(max_examples=25, deadline=None)
@given(st.sets(NAME, max_size=20))
def test_any_names_are_listed_as_by_dib_run_parts(tmp_path_factory, names):
    directory = tmp_path_factory.mktemp("phase")
    for name in names:
        (directory / name).write_text("")
        (directory / name).chmod(0o755)
    for pattern in ("", "."):
        listed = completed(
            [THEIRS.with_name("dib-run-parts"), "--list", directory],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "RUN_PARTS_REGEX": pattern},
            check=True,
        )
        expected = [Path(path).name for path in listed.stdout.split()]
        assert scripts(str(directory), pattern) == expected


def test_environment_files_are_sorted_by_the_bytes_of_their_names(tmp_path):
    """dib-run-parts sorts whole paths with sort -n, and none of them begins with a number."""
    beside = tmp_path / "environment.d"
    beside.mkdir()
    for name in ("9-b", "10-a", "a.sh", "B", "c~", "with blank"):
        (beside / name).write_text("")
    (beside / "folder").mkdir()
    (tmp_path / "configure.d").mkdir()
    paths = environment_files(str(tmp_path / "configure.d"))
    assert [Path(path).name for path in paths] == ["10-a", "9-b", "B", "a.sh"]
    assert environment_files(str(tmp_path / "no/such")) == []
