"""Templates that are programs."""

import os
import sys
from pathlib import Path

import pytest
from heat_agent.apply import executable
from heat_agent.apply.errors import ApplyError
from programs import completed

HOOKS = Path(executable.__file__).parents[2]
SECRET = "s3cr3t-of-the-stack"


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def run(path: str, document=None, **environment):
    return executable.run(path, document or {}, {"PATH": os.environ["PATH"], **environment})


def test_program_reads_the_metadata_and_has_the_environment(tmp_path):
    path = program(tmp_path / "x", "#!/bin/sh\ncat; echo; env | grep GIVEN\n")
    assert run(path, {"ü": [1, None]}, GIVEN="yes") == '{"\\u00fc": [1, null]}\nGIVEN=yes\n'


def test_more_data_than_a_pipe_holds_is_passed(tmp_path):
    path = program(tmp_path / "x", "#!/bin/sh\nhead -c 300000 /dev/zero >&2; cat\n")
    assert len(run(path, {"a": "x" * 500_000})) == 500_009


def test_errors_are_shown_without_the_values(tmp_path):
    """Upstream's log has all of its output, standard output too."""
    path = program(tmp_path / "x", '#!/bin/sh\necho out $SHOWN; echo "bad: $SHOWN" >&2; exit 4\n')
    with pytest.raises(ApplyError) as refusal:
        run(path, {"deep": [{"password": f"{SECRET}\nline two"}]}, SHOWN=SECRET)
    text = str(refusal.value)
    assert "status 4" in text
    assert "bad: ***" in text
    assert SECRET not in text
    assert "out" not in text.partition("\n")[2]


def test_background_process_delays_no_template(tmp_path):
    """With upstream, the pipe of a process left behind blocked everything."""
    path = program(tmp_path / "x", f"#!/bin/sh\nsleep 60 & echo $! >{tmp_path}/pid; echo done\n")
    try:
        assert run(path) == "done\n"
        os.kill(int((tmp_path / "pid").read_text()), 0)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), 9)


def test_background_output_does_not_count(tmp_path):
    path = program(
        tmp_path / "x",
        f"#!/bin/sh\nwhile sleep 0.02; do echo more; done & echo $! >{tmp_path}/pid; echo done\n",
    )
    try:
        assert "done\n" in run(path)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), 9)


def test_hanging_program_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(executable, "SECONDS", 0.5)
    with pytest.raises(ApplyError, match=r"longer than 0\.5 s"):
        run(program(tmp_path / "x", "#!/bin/sh\nexec sleep 60\n"))


def test_program_that_prints_without_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(executable, "OUTPUT_LIMIT", 1 << 20)
    with pytest.raises(ApplyError, match="printed too much"):
        run(program(tmp_path / "x", "#!/bin/sh\nexec yes\n"))


@pytest.mark.parametrize(
    ("text", "forked"),
    [("#!/usr/bin/python3 -IS\n", True), ("#!/usr/bin/python3\n", False), ("#!/bin/sh -e\n", None)],
)
def test_plain_python_runs_in_a_fork(tmp_path, text, forked):
    """The fork has the modules of this process, and nothing else differs."""
    body = "import sys; print('heat_agent' in sys.modules, sys.argv[1:], sys.stdin.read())"
    path = program(tmp_path / "x", text + (body if forked is not None else "echo False [] '{}'"))
    script = (
        f"import sys; sys.path.insert(0, {str(HOOKS)!r})\n"
        "from heat_agent.apply import executable\n"
        f"sys.stdout.write(executable.run({path!r}, {{}}, {{}}))\n"
    )
    interpreter = "/usr/bin/python3"
    done = completed([interpreter, "-IS", "-c", script])
    assert done.stdout == f"{forked is True} [] {{}}\n", done.stderr
    # In a Python with packages of its own the script would see those.
    done = completed([sys.executable, "-c", script])
    assert done.stdout == "False [] {}\n", done.stderr
