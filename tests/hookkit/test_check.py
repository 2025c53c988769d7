"""``hotplate hook check``: a hook that keeps the contract, and one that breaks each line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hotplate.cli import main
from hotplate.hookkit import lines, run
from hotplate.hookkit.contract import EXCEPTIONS, LINE_NAMES
from hotplate.hookkit.contract_configs import ROLES, filled_in
from hotplate.hookkit.contract_file import contract_file

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = yaml.safe_load((ROOT / "hotplate" / "hookkit" / "contracts.yaml").read_text())

#: A hook whose tool is a shell.
GOOD = f"""#!{sys.executable} -I
import json, os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
given = json.load(sys.stdin)
work = os.environ["HEAT_MINE_WORKING"]
os.makedirs(work, 0o700, exist_ok=True)
name = os.path.join(work, given["id"])
inputs = {{each["name"]: each["value"] for each in given["inputs"]}}
environment = dict(os.environ, heat_outputs_path=name)
for key, value in inputs.items():
    environment[key] = value if isinstance(value, str) else json.dumps(value)
with open(name + ".config", "w", encoding="utf-8") as file:
    file.write(given["config"])
secret = name + ".inputs"
try:
    with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(inputs, file)
    status, out, err = 127, b"", b"sh is not installed"
    try:
        done = subprocess.run(["sh", name + ".config"], env=environment, capture_output=True)
        status, out, err = done.returncode, done.stdout, done.stderr
    except FileNotFoundError:
        pass
finally:
    os.remove(secret)
answer = {{"deploy_status_code": status}}
answer["deploy_stdout"] = out.decode("utf-8", "replace")
answer["deploy_stderr"] = err.decode("utf-8", "replace")
for each in given["outputs"]:
    path = name + "." + each["name"]
    if os.path.exists(path):
        answer[each["name"]] = open(path, encoding="utf-8").read()
print(json.dumps(answer))
"""

HANDLER = "signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))"
RUN = '["sh", name + ".config"]'
WAITING = """
with open(work + "/count", "a") as file:
    file.write("x")
end = time.monotonic() + 60
while len(open(work + "/count").read()) == 2 and time.monotonic() < end:
    time.sleep(0.05)
secret = name"""

#: By the line, with a suffix for variants: the replaced part of GOOD, and words of the reason.
BAD = {
    "answer": ("print(json", 'print("working")\nprint(json', "text beside the JSON"),
    "answer status": ('{"deploy_status_code": status}', "{}", "no deploy_status_code"),
    "answer exit": ("print(json.dumps(answer))", "exit(3)", "exit status 3"),
    "inputs": (
        "value if isinstance(value, str) else json.dumps(value)",
        "str(value)",
        'the input a_list, ["a", "b c"], came back as "[\'a\', \'b c\']"',
    ),
    "unicode": (
        "for key, value in inputs.items():",
        "for key, value in inputs.items():\n"
        '    value = value.encode("ascii", "replace").decode() if key == "a_text" else value',
        "the input a_text",
    ),
    # Only the run with all inputs fails: those of the line "inputs" arrive.
    "unicode inputs": (
        "for key, value in inputs.items():",
        'for key, value in inputs.items():\n    str(value).encode("ascii")',
        "UnicodeEncodeError",
    ),
    "large-output": (
        'answer = {"deploy',
        'subprocess.run(["true", out.replace(b"\\0", b"")])\nanswer = {"deploy',
        "Argument list too long",
    ),
    "large-output short": ('out.decode("utf-8", "replace")', "out.decode()[:9000]", "9000 char"),
    "binary-output": ('out.decode("utf-8", "replace")', "out.decode()", "UnicodeDecodeError"),
    "failure": ('{"deploy_status_code": status}', '{"deploy_status_code": 0}', "a success"),
    "failure words": ('err.decode("utf-8", "replace")', '""', "an empty deploy_stderr"),
    "missing-tool": (
        "except FileNotFoundError:\n        pass",
        "finally:\n        pass",
        "crashed",
    ),
    "missing-tool status": ("out, err = 127,", "out, err = 0,", 'without "sh" on PATH it gives'),
    "missing-tool words": ('b"sh is not', 'b"it is not', "does not name it"),
    "log": ("work = os", "print(given, file=sys.stderr)\nwork = os", "in its log"),
    "log answer": ("err.decode(", "(err + repr(inputs).encode()).decode(", "in deploy_stderr"),
    "private": (
        "    os.remove(secret)",
        "    os.chmod(secret, 0o644); os.chmod(work, 0o755)",
        '"$HEAT_MINE_WORKING/<id>.inputs" holds an input, and every user can read it',
    ),
    "private interruption": (
        RUN,
        '["sh", name + ".config", inputs["password"]]',
        'an input is an argument of the program "sh"',
    ),
    "outside": ("secret = name", 'open("@elsewhere@/state", "w").close()\nsecret = name', "/state"),
    "outside marked": (
        "secret = name",
        'open("@elsewhere@/" + given["id"], "w").close()\nsecret = name',
        "/<id>",
    ),
    "again": ('".config", "w"', '".config", "x"', "a second run of it"),
    "at-once": ('given["id"])', '"one")', "belongs to the other"),
    "time-limit": (HANDLER, "", '<id>.inputs" still holds an input'),
    "time-limit kill": (
        HANDLER,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "it does not end on SIGTERM",
    ),
    "interruption": (RUN, RUN + ", start_new_session=True", '"sleep" still runs'),
}


@pytest.fixture
def make(tmp_path):
    """Write a hook and its contract file; return the hook."""

    def write(text):
        folder = tmp_path / "hooks"
        folder.mkdir()
        (tmp_path / "elsewhere").mkdir()
        hook = folder / "mine.py"
        hook.write_text(text.replace("@elsewhere@", str(tmp_path / "elsewhere")))
        hook.chmod(0o755)
        content = {"tool": "sh", "configs": CONTRACTS["script"]["configs"]}
        (folder / "mine.check.yaml").write_text(yaml.safe_dump(content))
        return hook

    return write


@pytest.fixture
def check(tmp_path, capsys):
    """Run ``hotplate hook check --json``; return the exit status and the lines by name."""

    def run(hook, *words):
        typed = ["hook", "check", str(hook), "--json", *words]
        status = main([*typed, "--changes-in", str(tmp_path / "elsewhere")])
        lines = json.loads(capsys.readouterr().out)["lines"]
        assert [each["name"] for each in lines] == list(LINE_NAMES)
        return status, {each["name"]: each for each in lines}

    return run


def test_good_hook_passes_all_lines(make, check):
    status, lines = check(make(GOOD))
    assert {each["name"]: each["faults"] for each in lines.values() if each["faults"]} == {}
    assert (status, {each["state"] for each in lines.values()}) == (0, {"passed"})


def test_each_line_has_a_bad_hook():
    assert {case.split()[0] for case in BAD} == set(LINE_NAMES)


@pytest.mark.parametrize("case", BAD)
def test_bad_hook_fails_its_own_line(make, check, case, monkeypatch):
    if case == "time-limit kill":
        for module in (run, lines):
            monkeypatch.setattr(module, "END_GRACE", 2.0)
    if case == "interruption":
        # What it leaves runs for ten minutes.
        monkeypatch.setattr(lines, "DYING", 0.5)
    old, new, words = BAD[case]
    assert old in GOOD
    text = GOOD.replace(old, new)
    if case == "at-once":
        text = text.replace("\nsecret = name", WAITING)
        # The other run may have removed it.
        text = text.replace("os.remove(secret)", 'subprocess.run(["rm", "-f", secret])')
    if case == "interruption":
        text = text.replace(HANDLER, "")
    line, *others = case.split()
    tried = [line, *(each for each in others if each in LINE_NAMES)]
    status, results = check(make(text), *(f"--line={each}" for each in tried))
    assert status == 1
    assert [name for name, each in results.items() if each["state"] == "failed"] == [line]
    reasons = [each["reason"] for each in results[line]["faults"]]
    assert any(words in each for each in reasons), reasons
    assert all(each["mend"] for each in results[line]["faults"])


def test_hook_without_an_answer_is_not_tried_further(make, check):
    hook = make(GOOD)
    hook.chmod(0o644)
    status, lines = check(hook)
    assert (status, lines["answer"]["state"]) == (1, "failed")
    assert lines["answer"]["faults"][0]["mend"] == "chmod 0755 the hook"
    assert lines["again"]["state"] == "not tried"
    assert lines["again"]["reason"] == 'the hook fails "answer"'


def test_line_that_cannot_be_tried_is_not_passed(make, check):
    hook = make(GOOD)
    contract = hook.with_name("mine.check.yaml")
    contract.write_text("configs: {ok: echo @word@}\nnot-tried: {large-output: a reason}\n")
    status, lines = check(hook, *(f"--line={each}" for each in LINE_NAMES if each != "again"))
    assert status == 0
    reasons = {name: each["reason"] for name, each in lines.items() if each["state"] == "not tried"}
    assert reasons.pop("large-output") == "a reason"
    assert reasons.pop("again") == "not asked for"
    assert reasons.pop("missing-tool") == "no tool is named: --tool PROGRAM"
    # A hook that ignores its inputs passes the config ok, too.
    assert "accepts them, but does not show them: no config" in reasons.pop("inputs")
    assert "--config inputs=FILE" in reasons.pop("unicode")
    assert set(reasons) == {"binary-output", "failure", "time-limit", "interruption"}
    assert "--config fails=FILE" in reasons["failure"]


def test_inputs_that_fail_the_config_ok_fail_their_line(make, check):
    strict = 'assert all(isinstance(each["value"], str) for each in given["inputs"])\nwork = os'
    hook = make(GOOD.replace("work = os", strict, 1))
    hook.with_name("mine.check.yaml").write_text("configs: {ok: echo @word@}\n")
    status, lines = check(hook, "--line=inputs", "--line=unicode")
    assert (status, lines["inputs"]["state"]) == (1, "failed")
    assert lines["unicode"]["state"] == "not tried"


def test_tool_without_output_is_told_from_a_hook_without_an_answer(make, check):
    hook = make(GOOD)
    hook.with_name("mine.check.yaml").write_text('configs: {ok: "true @word@"}\n')
    status, lines = check(hook, "--line=answer")
    assert status == 1
    assert "leave @word@ out of the config ok" in lines["answer"]["faults"][0]["mend"]


def test_check_prints_its_result_as_text(make, capsys, tmp_path):
    hook = make(GOOD.replace("print(json", 'print("working")\nprint(json'))
    assert main(["hook", "check", str(hook), "--changes-in", str(tmp_path / "elsewhere")]) == 1
    out = capsys.readouterr().out
    assert "group mine" in out
    assert "failed     answer         it answers with one JSON object" in out
    assert "reason: with the config ok: stdout, line 1: text beside the JSON answer" in out
    assert "mend:   send all other output of the hook and its tools to stderr" in out
    assert out.endswith("0 passed, 1 failed, 13 not tried\n")
    # The paths of the files are the user's, and may be of any length.
    assert max(map(len, out.replace(f"{hook.parent}/", "").splitlines())) <= 100


def test_unselected_lines_are_only_counted(make, capsys, tmp_path):
    words = ["--changes-in", str(tmp_path), "--line", "answer"]
    assert main(["hook", "check", str(make(GOOD)), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [each.split()[:2] for each in lines[-2:]] == [["passed", "answer"], ["1", "passed,"]]
    assert lines[-1] == "1 passed, 0 failed, 13 not tried"
    assert not any(each.startswith("not tried") for each in lines)


def test_config_option_replaces_a_config(make, check, tmp_path):
    hook = make(GOOD)
    bad = tmp_path / "bad.sh"
    bad.write_text("exit 1\n")
    status, lines = check(hook, "--line=failure", f"--config=fails={bad}")
    assert status == 1
    assert "an empty deploy_stderr" in lines["failure"]["faults"][0]["reason"]


def except_for(hook, **exceptions):
    """Add exceptions to a hook's contract file."""
    path = hook.with_name("mine.check.yaml")
    content = yaml.safe_load(path.read_text())
    names = {name.replace("_", "-"): reason for name, reason in exceptions.items()}
    path.write_text(yaml.safe_dump({**content, "exceptions": names}))


def test_tool_errors_on_stdout_are_excused_with_a_reason(make, check, tmp_path, capsys):
    bad = tmp_path / "bad.sh"
    bad.write_text("echo @word@\nexit 1\n")
    hook, words = make(GOOD), ["--line=failure", f"--config=fails={bad}"]
    status, lines = check(hook, *words)
    (fault,) = lines["failure"]["faults"]
    assert (status, "is in deploy_stdout, not in" in fault["reason"]) == (1, True)
    except_for(hook, words_on_stdout="that is how it is")
    status, lines = check(hook, *words)
    assert (status, lines["failure"]["state"]) == (0, "passed")
    assert lines["failure"]["excepted"] == {"words-on-stdout": "that is how it is"}
    main(["hook", "check", str(hook), *words, "--changes-in", str(tmp_path / "elsewhere")])
    assert "except: that is how it is\n" in capsys.readouterr().out


def test_exception_excuses_only_its_own_fault(make, check, monkeypatch):
    """A program that outlives the hook is excused; an input that the hook left is not."""
    monkeypatch.setattr(lines, "DYING", 0.5)
    text = GOOD.replace(RUN, RUN + ", start_new_session=True").replace(HANDLER, "")
    hook = make(text)
    except_for(hook, own_session="it is made so")
    status, results = check(hook, "--line=interruption", "--line=failure")
    reasons = [each["reason"] for each in results["interruption"]["faults"]]
    assert (status, len(reasons)) == (1, 1)
    assert reasons[0].endswith("still holds an input")
    assert list(results["interruption"]["excepted"]) == ["own-session"]
    assert results["failure"]["excepted"] == {}


def test_each_exception_belongs_to_a_line():
    source = (ROOT / "hotplate" / "hookkit" / "lines.py").read_text()
    assert {name for name in EXCEPTIONS if f'exception="{name}"' in source} == set(EXCEPTIONS)
    assert {line for lines, _ in EXCEPTIONS.values() for line in lines} <= set(LINE_NAMES)


def test_config_that_does_not_signal_its_start_is_named(make, check, tmp_path, monkeypatch):
    has_come = lines._Ready.has_come
    monkeypatch.setattr(lines._Ready, "has_come", lambda self, _: has_come(self, 1.0))
    slow = tmp_path / "slow.sh"
    slow.write_text("sleep 600\n")
    words = ["--line=interruption", f"--config=slow={slow}", "--timeout=15"]
    status, results = check(make(GOOD), *words)
    (fault,) = results["interruption"]["faults"]
    assert (status, fault["reason"]) == (
        1,
        "the config slow wrote nothing to its FIFO within 15 seconds",
    )
    assert "@ready@" in fault["mend"]


@pytest.mark.parametrize(
    ("words", "content", "sentence"),
    [
        ([], "tool: sh\n", "no config to try the hook of the group"),
        ([], "configs: {okay: x}\n", 'has the config "okay"; expected one of binary, fails'),
        ([], "not-tried: {nothing: x}\n", 'has the line "nothing"'),
        ([], "exceptions: {nothing: x}\n", 'has the exception "nothing"'),
        ([], "exceptions: {own-session: }\n", 'has "exceptions" whose reasons are not text'),
        ([], "colour: red\n", 'has the key "colour"'),
        ([], "- a\n", "is no map"),
        ([], "a: [\n", "cannot be read"),
        (["--config", "okay=x"], "configs: {ok: x}\n", "--config number 1 is not NAME=FILE"),
        (["--config", "ok=/no/such"], "configs: {ok: x}\n", "cannot be read: No such file"),
        (["--timeout", "0"], "configs: {ok: x}\n", "--timeout 0 is no time limit"),
    ],
)
def test_wrong_usage_is_refused(make, capsys, words, content, sentence):
    hook = make(GOOD)
    hook.with_name("mine.check.yaml").write_text(content)
    assert main(["hook", "check", str(hook), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err


def test_missing_tool_is_a_host_error(make, capsys, tmp_path):
    hook = make(GOOD.replace('["sh", name', '["no-such-tool", name').replace('b"sh is', 'b"it is'))
    typed = ["hook", "check", str(hook), "--tool", "no-such-tool"]
    assert main([*typed, "--changes-in", str(tmp_path / "elsewhere")]) == 3
    assert (
        'the tool "no-such-tool" of the group mine is not on this host' in capsys.readouterr().err
    )


def test_interruption_ends_the_hook_and_leaves_no_file(make, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ready = tmp_path / "began"
    os.mkfifo(ready)
    hook = make(GOOD)
    config = tmp_path / "config"
    config.write_text(f"echo > {ready}\nexec sleep 600\n")
    typed = ["hook", "check", str(hook), "--config", f"ok={config}", "--changes-in", str(scratch)]
    child = subprocess.Popen(
        [sys.executable, "-m", "hotplate", *typed],
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        ready.read_text()
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=100)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 128 + signal.SIGTERM
    assert b"the hook was ended" in err
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("group", CONTRACTS)
def test_built_in_contracts_are_readable(group):
    given = contract_file(Path("/no/such/hook.py"), group)
    assert "ok" in given.configs
    assert (ROOT / "elements" / f"heat-config-{group}").is_dir()
    # Each config exists, or there is a reason that it does not.
    lines = {"fails": "failure", "large": "large-output", "binary": "binary-output"}
    lines |= {"slow": "time-limit"}
    for role, line in lines.items():
        assert (role in given.configs) != (line in given.not_tried), role


def test_config_is_filled_in_at_each_name():
    assert filled_in({"a@word@": ["@dir@", 1]}, {"word": "W", "dir": "D"}) == {"aW": ["D", 1]}
    assert set(ROLES) >= {"ok", "fails"}
