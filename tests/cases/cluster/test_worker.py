"""``hotplate worker``: refused options, and a scheduler that does not answer."""

from __future__ import annotations

import pytest

from hotplate import cli
from hotplate.cases.cluster import resources


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("nonsense",), '"nonsense" is no address of a Dask scheduler'),
        (("tcp://127.0.0.1:9", "--cores", "0"), "--cores 0 is too small; expected at least 1"),
    ],
)
def test_invalid_worker_options_are_refused(capsys, words, problem):
    assert cli.main(["worker", *words]) == 2
    assert problem in capsys.readouterr().err


def test_worker_ends_when_no_scheduler_answers(monkeypatch, capsys, tmp_path):
    able = {resources.CORES: 2.0, resources.MEMORY: 1000.0}
    monkeypatch.setattr(resources, "of_host", lambda *_, **__: able)
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path))
    words = ["--death-timeout", "0.5", "--local-directory", str(tmp_path)]
    assert cli.main(["worker", "tcp://127.0.0.1:9", *words]) == 3
    out, err = capsys.readouterr()
    assert out == "can do: 2 at a time, 1000 MiB of memory\n"
    assert 'no scheduler answered at "tcp://127.0.0.1:9" for 0.5 s' in err
    assert "is not encrypted" in err
