"""``hotplate hook run``: the answer as Heat would get it, and each kind of misbehaviour."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_disk import small_disk

from hotplate.cli import main

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "hooks" / "script.py"
TMPFILES = ROOT / "docs" / "examples" / "hook" / "hooks" / "tmpfiles.py"

GOOD = """#!/bin/sh
document=$(cat)
echo "working" >&2
mkdir -p "$HEAT_GOOD_WORKING" && umask > "$HEAT_GOOD_WORKING/umask"
printf '{"deploy_stdout": "in %s, mask %s, %s words\\\\n", "deploy_stderr": "",
  "deploy_status_code": 0, "said": "yes"}\\n' "$PWD" "$(cat "$HEAT_GOOD_WORKING/umask")" "$#"
"""

ANSWER = '{"deploy_stdout": "", "deploy_stderr": "", "deploy_status_code": 0}'


@pytest.fixture
def make_hook(tmp_path):
    """Write an executable hook; ``make_hook(text, name="good.sh")``."""

    def make(text, name="a-hook", mode=0o755):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        return path

    return make


@pytest.fixture
def run_verb(tmp_path, monkeypatch, capsys):
    """Run ``hotplate hook run``; return the exit status, its stdout and its stderr."""
    looked = tmp_path / "looked-below"
    looked.mkdir()

    def run(hook, *words, config="", changes_in=looked):
        stream = io.TextIOWrapper(io.BytesIO(config.encode()))
        monkeypatch.setattr(sys, "stdin", stream)
        typed = ["hook", "run", str(hook), "--config", "-", *words]
        status = main([*typed, "--changes-in", str(changes_in)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def report_of(run_verb):
    """Return (exit status, the JSON) of a run."""

    def run(hook, *words, **more):
        status, out, _ = run_verb(hook, "--json", *words, **more)
        return status, json.loads(out)

    return run


def kinds(report):
    return [each["kind"] for each in report["findings"]]


def test_script_hook_answers(report_of):
    config = 'echo "hello $who"\necho "$who" > $heat_outputs_path.greeted\necho oops >&2\n'
    status, report = report_of(SCRIPT, "--input", "who=me", "--output", "greeted", config=config)
    assert (status, report["findings"], report["complete"]) == (0, [], True)
    assert report["answer"] == {
        "deploy_stdout": "hello me\n",
        "deploy_stderr": "oops\n",
        "deploy_status_code": 0,
        "greeted": "me\n",
    }


def test_failed_tool_is_no_finding_but_fails_the_deployment(report_of):
    status, report = report_of(SCRIPT, config="exit 3\n")
    assert (status, report["findings"], report["complete"]) == (1, [], False)
    assert report["answer"]["deploy_status_code"] == 3


def test_documented_hook_runs(report_of, tmp_path):
    made = tmp_path / "looked-below" / "made"
    if not Path("/usr/bin/systemd-tmpfiles").exists():
        pytest.skip('"systemd-tmpfiles" is not on this host')
    status, report = report_of(TMPFILES, "--output", "applied", config=f"d {made} 0750 - - -\n")
    assert (status, report["findings"]) == (0, [])
    assert report["changed"] == [{"kind": "made", "path": f"{made}/"}]


def test_shell_hook_is_called_as_in_a_guest(report_of, make_hook):
    """No argument, umask 022 regardless of ours, "/" as directory, its own scratch directory."""
    before = os.umask(0o077)
    try:
        status, report = report_of(make_hook(GOOD, "good.sh"), "--output", "said")
    finally:
        os.umask(before)
    assert (status, report["findings"]) == (0, [])
    assert report["answer"]["deploy_stdout"] == "in /, mask 0022, 0 words\n"
    assert (report["answer"]["said"], report["log"]) == ("yes", "working\n")


def test_hook_gets_the_deployment_as_from_heat(report_of, make_hook):
    text = f"""#!{sys.executable}
import json, sys
given = json.load(sys.stdin)
print(json.dumps({{"deploy_stdout": json.dumps(given), "deploy_status_code": 0}}))
"""
    words = ["--group", "mine", "--action", "UPDATE", "--input", "a=b=c", "--option", "o=1"]
    _, report = report_of(make_hook(text), *words, "--output", "x", config="the config\n")
    given = json.loads(report["answer"]["deploy_stdout"])
    inputs = {each["name"]: each["value"] for each in given["inputs"]}
    assert (given["group"], given["config"], given["options"]) == (
        "mine",
        "the config\n",
        {"o": "1"},
    )
    assert (inputs["a"], inputs["deploy_action"]) == ("b=c", "UPDATE")
    assert given["outputs"] == [{"name": "x", "type": "String", "error_output": False}]


PYTHON = f"#!{sys.executable}\n"

#: Each misbehaviour: the hook, the named line (0: none), and words of the sentence.
BAD = {
    "not-executable": ("#!/bin/sh\n", 0, "chmod 0755"),
    "no-interpreter": ("#!/no/such/program -x\n", 1, '"/no/such/program" does not exist'),
    "no-interpreter cr": (
        "#!/bin/sh\r\nexit 0\r\n",
        1,
        r'its interpreter "/bin/sh\r" does not exist on this host; its lines end with CR LF',
    ),
    "no-interpreter text": ("echo hello\n", 1, 'does not begin with "#!"'),
    "timeout": ("#!/bin/sh\nsleep 60\n", 0, "took too long"),
    "crash signal": ("#!/bin/sh\nkill -SEGV $$\n", 0, "SIGSEGV"),
    "crash traceback": (
        PYTHON + "def f():\n    {}['absent']\nf()\n",
        3,
        "exit status 1, and last wrote \"KeyError: 'absent'\"",
    ),
    "crash sh": ("#!/bin/sh\n\nset -u\n: $absent_one\n", 4, "absent_one"),
    "crash env cr": ("#!/usr/bin/env python3\r\n", 1, "status 127, and last wrote"),
    "crash cr": ("#!/bin/sh -e\r\nexit 0\r\n", 1, "; its lines end with CR LF"),
    "no-answer": ("#!/bin/sh\nexit 0\n", 0, "nothing to stdout"),
    "not-json": ("#!/bin/sh\necho first\necho second\n", 1, '"first"'),
    "not-json list": ("#!/bin/sh\necho '[1]'\n", 1, "not an object"),
    "text-beside-json": (f"#!/bin/sh\necho\necho Working\necho '{ANSWER}'\n", 2, '"Working"'),
    "text-beside-json after": (f"#!/bin/sh\necho '{ANSWER}'\necho done\n", 2, '"done"'),
    "text-beside-json both": (f"#!/bin/sh\necho a\necho '{ANSWER}'\necho b\n", 1, '"a"'),
    "no-status": ('#!/bin/sh\necho \'{"deploy_stdout": ""}\'\n', 0, "no deploy_status_code"),
    "no-status word": ('#!/bin/sh\necho \'{"deploy_status_code": "ok"}\'\n', 0, "is no number"),
    "exit-status": (f"#!/bin/sh\necho '{ANSWER}'\nexit 7\n", 0, "exit status 7"),
    "output-missing": (f"#!/bin/sh\necho '{ANSWER}'\n", 0, '"wanted"'),
    "output-undeclared": (
        '#!/bin/sh\necho \'{"deploy_status_code": 0, "other": 1}\'\n',
        0,
        '"other"',
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_each_misbehaviour_is_named(report_of, make_hook, case):
    text, line, words = BAD[case]
    kind = case.split()[0]
    hook = make_hook(text, mode=0o644 if kind == "not-executable" else 0o755)
    options = ["--output", "wanted"] if kind == "output-missing" else []
    options += ["--timeout", "0.5"] if kind == "timeout" else []
    status, report = report_of(hook, *options)
    assert (status, kinds(report)) == (1, [kind])
    (finding,) = report["findings"]
    assert words in finding["sentence"]
    assert finding["line"] == line
    at_stdout = kind in ("not-json", "text-beside-json")
    assert finding["place"] == ("stdout" if at_stdout else str(hook) if line else "")


def test_plain_text_becomes_stdout_as_in_a_guest(report_of, make_hook):
    """The deployment is COMPLETE in spite of it, so a finding is needed."""
    _, report = report_of(make_hook("#!/bin/sh\necho text\n"))
    assert (report["complete"], report["answer"]["deploy_stdout"]) == (True, "text\n")


def test_quotations_hide_input_values(report_of, make_hook):
    text = PYTHON + (
        "import json, sys\n"
        "inputs = {e['name']: e['value'] for e in json.load(sys.stdin)['inputs']}\n"
        "print('text', inputs['password'], inputs['pin'])\n"
        "raise ValueError(inputs['password'] + ' ' + inputs['pin'])\n"
    )
    words = ["--input", "password=hunter2 it's", "--input", "pin=7"]
    status, report = report_of(make_hook(text), *words)
    sentences = " ".join(each["sentence"] for each in report["findings"])
    assert (status, kinds(report)) == (1, ["crash", "not-json"])
    assert "ValueError: <password> <pin>" in sentences
    assert "text <password> <pin>" in sentences
    assert "hunter2" not in sentences


def test_changed_files_are_listed(report_of, make_hook, tmp_path):
    below = tmp_path / "looked-below"
    for name in ("changed", "removed", "kept"):
        (below / name).write_text(name)
    text = (
        f"#!/bin/sh\ncd {below}\necho more >> changed\nrm removed\nmkdir new\n: > new/file\n"
        f"echo '{ANSWER}'\n"
    )
    status, report = report_of(make_hook(text))
    assert [(each["kind"], each["path"]) for each in report["changed"]] == [
        ("changed", f"{below}/changed"),
        ("made", f"{below}/new/"),
        ("made", f"{below}/new/file"),
        ("removed", f"{below}/removed"),
    ]
    assert (status, report["looked_at_all"]) == (0, True)


def test_run_prints_its_result_as_text(run_verb, make_hook):
    text = f"#!/bin/sh\nprintf '\\033[31mstray\\n'\necho '{ANSWER}'\n(sleep 60 &)\n"
    status, out, _ = run_verb(make_hook(text, "some_hook.sh"))
    assert status == 1
    assert "group some-hook, CREATE" in out
    assert "result   COMPLETE, deploy_status_code 0" in out
    assert "it left processes running" in out
    assert "changed files below" in out
    assert "finding 1: stdout, line 1: text beside the JSON answer" in out
    assert "\x1b" not in out


def test_scratch_files_are_removed(run_verb, monkeypatch, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert run_verb(SCRIPT, config="pwd")[0] == 0
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--input", "hunter2"], "--input number 1 is not NAME=VALUE"),
        (["--option", "a=b", "--option", "=hunter2"], "--option number 2 is not NAME=VALUE"),
        (["--timeout", "0"], "--timeout 0 is no time limit"),
        (["--group", "../x"], "can have no hook"),
        (["--config", "/no/such/file"], "cannot be read"),
    ],
)
def test_wrong_usage_is_refused(run_verb, words, sentence):
    status, out, err = run_verb(SCRIPT, *words)
    assert (status, out) == (2, "")
    assert sentence in err
    assert "hunter2" not in err


def test_config_from_a_closed_standard_input_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["hook", "run", str(SCRIPT), "--config", "-"]) == 2
    assert 'the config "-" cannot be read: standard input is closed' in capsys.readouterr().err


def test_missing_hook_is_a_usage_error(run_verb, tmp_path):
    status, _, err = run_verb(tmp_path / "absent")
    assert status == 2
    assert "does not exist" in err


def test_timeout_option_counts_as_in_a_guest(report_of, make_hook):
    hook = make_hook("#!/bin/sh\nsleep 60\n")
    assert kinds(report_of(hook, "--option", "timeout=0.3")[1]) == ["timeout"]


def test_interruption_ends_the_hook(make_hook, tmp_path):
    pid_file = tmp_path / "pid"
    hook = make_hook(
        f"#!/bin/sh\necho $$ > {pid_file}.part\nmv {pid_file}.part {pid_file}\nsleep 60\n"
    )
    typed = [sys.executable, "-m", "hotplate", "hook", "run", str(hook), "--config", os.devnull]
    child = subprocess.Popen(
        [*typed, "--changes-in", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        end = time.monotonic() + 60
        while not pid_file.exists() and time.monotonic() < end:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, out) == (128 + signal.SIGINT, b"")
    assert b"ended by SIGINT" in err
    # An orphan exists until process 1 has collected it.
    end = time.monotonic() + 30
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(int(pid_file.read_text()), 0)
            time.sleep(0.02)


@pytest.mark.root
def test_full_disk_is_no_fault_of_the_runner(run_verb, make_hook, tmp_path, monkeypatch):
    with small_disk(tmp_path / "small", "4k") as small:
        monkeypatch.setattr("tempfile.tempdir", str(small))
        status, _, said = run_verb(make_hook(f"#!/bin/sh\necho '{ANSWER}'\n"))
    assert (status, f"df -h {small}" in said) == (3, True), said
