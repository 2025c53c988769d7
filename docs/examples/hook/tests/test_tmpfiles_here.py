"""The hook on this host, without a guest; run by: pytest FILE."""

from pathlib import Path

HOOK = Path(__file__).parents[1] / "hooks" / "tmpfiles.py"


def test_a_directory_is_made(run_hook, tmp_path):
    config = f"d {tmp_path}/made 0750 - - -\n"
    answer = run_hook(HOOK, config, outputs=["applied"])
    assert answer.complete, answer
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o750
    assert Path(answer.outputs["applied"]).read_text() == config


def test_a_bad_line_fails_the_deployment(run_hook):
    answer = run_hook(HOOK, "nonsense\n", outputs=["applied"])
    assert not answer.complete
    assert ":1: " in answer.stderr
