"""Images by name, as the command line gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_disk

from hotplate.errors import UsageError
from hotplate.image import named


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_disk.make(tmp_path / "tiny.raw")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_are_those_of_files(folder: Path) -> None:
    files = named.parse(["web=tiny.raw", "Debian 12=tiny", "a.b=./tiny.raw"])
    assert files == dict.fromkeys(("web", "Debian 12", "a.b"), folder / "tiny.raw")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tiny.raw"], '"tiny.raw" gives no image a name; expected NAME=PATH'),
        (["=tiny.raw"], '"=tiny.raw" gives no image a name; expected NAME=PATH'),
        (["web="], '"web=" gives no image a name; expected NAME=PATH'),
        (["./a=b.raw"], '"./a=b.raw" gives no image a name; expected NAME=PATH'),
        (["web=tiny.raw", "web=tiny"], 'the image name "web" is given twice'),
        (["web=."], '"." is a directory, not an image file'),
        (["web=db.raw"], 'there is no image "db.raw"'),
    ],
)
def test_invalid_argument_is_one_sentence(folder: Path, words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        named.parse(words)
    assert raised.value.message == sentence
