"""The resident agent's call: render a tree of templates for a document, in this process."""

import os
from pathlib import Path

import pytest
from heat_agent.apply import tree
from heat_agent.apply.errors import ApplyError


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """A folder for templates."""
    folder = tmp_path / "templates"
    folder.mkdir()
    return folder


def lines():
    """A log function, and the lines that it got."""
    kept = []
    return kept, lambda level, text: kept.append(f"{level} {text}")


def test_plain_templates_start_no_process(templates, tmp_path, monkeypatch):
    def refuse():
        raise AssertionError("a process was started")

    monkeypatch.setattr(os, "fork", refuse)
    (templates / "etc").mkdir()
    (templates / "etc/a").write_text("{{word}}")
    (templates / "b").write_text("{{word}}{{word}}")
    kept, log = lines()
    tree.install({"word": "w"}, str(templates), str(tmp_path / "out"), log=log)
    assert (tmp_path / "out/etc/a").read_text() == "w"
    assert kept == [f"INFO writing {tmp_path}/out/b", f"INFO writing {tmp_path}/out/etc/a"]


def test_temporary_files_are_removed(templates, tmp_path):
    for name in "abc":
        (templates / name).write_text(name)
    out = tmp_path / "out"
    tree.install({}, str(templates), str(out), log=lines()[1])
    (out / "c").unlink()
    (out / "c").mkdir()
    with pytest.raises(ApplyError, match="Is a directory"):
        tree.install({}, str(templates), str(out), log=lines()[1])
    assert sorted(path.name for path in out.iterdir()) == ["a", "b", "c"]


def test_reader_never_sees_a_partial_file(templates, tmp_path):
    """Upstream renames before it flushes: a reader then sees an empty file."""
    (templates / "file").write_text("{{word}}" * 100_000)
    out = tmp_path / "out"
    tree.install({"word": "old"}, str(templates), str(out), log=lines()[1])
    reader = (out / "file").open()
    seen = []
    tree.install(
        {"word": "new"},
        str(templates),
        str(out),
        log=lambda *_: seen.append((out / "file").stat().st_size),
    )
    assert seen == [300_000]
    assert reader.read() == "old" * 100_000
    assert (out / "file").read_text() == "new" * 100_000


def test_special_files_are_no_templates(templates):
    os.mkfifo(templates / "pipe")
    with pytest.raises(ApplyError, match="pipe is not a file"):
        tree.render({}, str(templates))


def test_missing_template_directory_has_no_templates(tmp_path):
    """As upstream, which walks whatever exists."""
    assert tree.render({}, str(tmp_path / "none")) == []


def test_metadata_nested_too_deeply_is_one_sentence(templates):
    document = inner = {}
    for _ in range(100_000):
        inner["a"] = inner = {}
    (templates / "all").write_text("{{a}}")
    with pytest.raises(ApplyError, match=r"too deep|no end"):
        tree.render(document, str(templates))
    while document:
        document = document.pop("a")
