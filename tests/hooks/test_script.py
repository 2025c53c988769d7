"""The script hook, run as the runner runs it."""

import os
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from programs import python_of


@pytest.fixture
def script(hook_of, tmp_path: Path):
    """Run the script hook on a config; keywords go to make_deployment."""
    return hook_of(
        "script",
        HEAT_SCRIPT_WORKING=tmp_path / "work",
        HEAT_SCRIPT_OUTPUTS=tmp_path / "out",
    )


def test_streams_status_and_outputs_are_answered(script):
    answer = script(
        "#!/bin/sh\necho hello\necho trouble >&2\nprintf done >$heat_outputs_path.result\nexit 3\n",
        outputs=["result", "absent"],
    )
    assert (answer.status, answer.stdout, answer.stderr) == (3, "hello\n", "trouble\n")
    assert answer.outputs == {"result": "done"}


@pytest.mark.defect("K1", "K4")
def test_inputs_of_every_json_type_are_in_the_environment(script):
    texts = ["text", "", "ünïcode ☃ 🍲", "two\nlines"]
    values = [*texts, None, True, False, 7, 1.5, [1, "a"], {"a": None}]
    inputs = [{"name": f"v{number}", "value": value} for number, value in enumerate(values)]
    inputs.append({"name": "v11", "type": "String"})
    printed = " ".join(f'"$v{number}"' for number in range(12))
    answer = script(f"printf '%s\\0' {printed}", inputs=inputs)
    expected = [*texts, "", "true", "false", "7", "1.5", '[1, "a"]', '{"a": null}', "", ""]
    assert (answer.status, answer.stdout.split("\0")) == (0, expected)
    assert answer.log == ""


@pytest.mark.defect("K2")
def test_script_without_shebang_is_run_by_the_shell(script):
    assert script("echo $((40 + 2))").stdout == "42\n"


@pytest.mark.defect("K2")
def test_missing_interpreter_is_a_sentence(script):
    answer = script("#!/no/such/interpreter\n")
    assert answer.status == 127
    assert answer.stderr.endswith(
        'cannot be run: the interpreter "/no/such/interpreter" in its first line does not exist.\n'
    )


def test_byte_order_mark_before_the_interpreter_is_a_sentence(script):
    """A shell would run the lines of another language."""
    answer = script("\ufeff#!/usr/bin/python3\nprint(1)\n")
    assert (answer.status, answer.stdout) == (126, "")
    assert answer.stderr.endswith(
        'its first line does not begin with "#!", but with a byte order mark.\n'
    )


CR_LF = "its lines end with CR LF, where LF alone is expected.\n"


@pytest.mark.parametrize(
    ("config", "status", "words"),
    [
        # The kernel takes the carriage return as part of the name, or of the argument.
        (
            "#!/bin/bash\r\nset -e\r\necho hi\r\n",
            127,
            r'the interpreter "/bin/bash\r" in its first line does not exist; ',
        ),
        ("#!/usr/bin/env bash\r\necho hi\r\n", 127, "The config failed; "),
        ("#!/bin/bash -e\r\necho hi\r\n", 1, "The config failed; "),
        ("set -e\r\necho hi\r\n", 2, "The config failed; "),
        ("#!/bin/sh\nfalse\r\n", 127, "The config failed; "),
    ],
    ids=["interpreter", "env", "argument", "no-shebang", "later-line"],
)
def test_windows_line_ends_are_explained(script, config, status, words):
    answer = script(config)
    assert answer.status == status
    assert answer.stderr.endswith(words + CR_LF)
    assert answer.stderr.count("CR LF") == 1


@pytest.mark.parametrize(
    "config", ["#!/bin/sh\nprintf 'GET /\r\n'; exit 3\n", "exit 0 #\r\n"], ids=["text", "success"]
)
def test_line_ends_are_not_blamed_for_other_failures(script, config):
    """Neither for a script that has CR LF in its text, nor for one that succeeded all the same."""
    answer = script(config)
    assert "CR LF" not in answer.stderr


@pytest.mark.parametrize("config", ["", None])
def test_empty_config_does_nothing_and_succeeds(script, config):
    assert script(config).status == 0


@pytest.mark.defect("K3")
def test_any_bytes_in_streams_and_outputs_are_answered(script):
    answer = script(
        "printf '\\377\\000x'; printf '\\376' >&2; printf '\\377\\000y' >$heat_outputs_path.result",
        outputs=["result"],
    )
    assert answer.status == 0
    assert (answer.stdout, answer.stderr) == ("\ufffd\0x", "\ufffd")
    assert answer.outputs == {"result": "\ufffd\0y"}


def test_two_megabytes_of_output_are_answered(script):
    answer = script("head -c 2000000 /dev/zero | tr '\\0' a")
    assert answer.stdout == "a" * 2_000_000


def test_excessive_output_loses_its_middle_with_a_mark(script):
    answer = script("echo first; head -c 9000000 /dev/zero | tr '\\0' a; echo last")
    assert len(answer.stdout) < 5_000_000
    assert answer.stdout.startswith("first\n")
    assert answer.stdout.endswith("last\n")
    assert "bytes are left out here" in answer.stdout


def test_background_child_does_not_delay_the_hook(script):
    answer = script("sleep 300 &\necho $!")
    # The child is still alive.
    os.kill(int(answer.stdout), signal.SIGKILL)


def test_files_are_private_and_the_directory_is_the_working_one(script, tmp_path: Path):
    answer = script("#!/bin/sh\npwd; umask; touch made", id="plain-id")
    work = tmp_path / "work"
    assert answer.stdout.split()[0] == str(work)
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    assert stat.S_IMODE((work / "plain-id").stat().st_mode) == 0o700


@pytest.mark.defect("H9")
def test_shorter_script_replaces_a_longer_one(script):
    script("#!/bin/sh\n" + "echo one\n" * 9, id="same")
    assert script("#!/bin/sh\necho three\n", id="same").stdout == "three\n"


@pytest.mark.defect("H8")
def test_output_names_cannot_leave_the_directory(script, tmp_path: Path):
    (tmp_path / "secret").write_text("planted")
    answer = script(
        'mkdir "$heat_outputs_path.x"', outputs=["x/../../secret", "/../secret", "..", "a/b", ""]
    )
    assert answer.outputs == {}
    assert b"planted" not in answer.raw


def test_output_that_is_a_link_is_followed(script):
    """As in heat-agents, which open it; the script is root, as the hook is."""
    answer = script('echo hi >f; ln -s "$PWD/f" "$heat_outputs_path.result"', outputs=["result"])
    assert (answer.status, answer.outputs) == (0, {"result": "hi\n"})


@pytest.mark.parametrize(
    "make",
    ["ln -s /no/such $F", "ln -s /dev/zero $F", "mkfifo $F", "mkdir $F"],
    ids=["dangling", "device", "pipe", "directory"],
)
def test_output_that_is_no_regular_file_is_absent(script, make):
    answer = script(make.replace("$F", '"$heat_outputs_path.result"'), outputs=["result"])
    assert (answer.status, answer.outputs) == (0, {})


def test_environment_is_kept_and_inputs_win(script):
    answer = script(
        'echo "$OS_CONFIG_FILES $LC_ALL"',
        inputs={"LC_ALL": "given"},
        env={"OS_CONFIG_FILES": "a:b"},
    )
    assert answer.stdout == "a:b given\n"


def test_parallel_runs_do_not_meet(script):
    def one(number: int) -> str:
        return script(f"sleep 0.1; echo {number} >$heat_outputs_path.n", outputs=["n"]).outputs["n"]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(one, range(12))) == [f"{n}\n" for n in range(12)]


@pytest.mark.parametrize(
    "document",
    [b"", b"null", b"[]", b"{", b'{"id": "../x"}', b'{"id": 5}', b"\xff", b"[" * 100_000],
    ids=lambda d: repr(d[:12]),
)
def test_malformed_deployment_is_answered_as_failed(run_hook, document):
    answer = run_hook("script.py", document)
    assert answer.status == 1
    assert answer.stderr.endswith(".\n")


def test_working_directory_that_cannot_be_made_is_a_sentence(script, tmp_path: Path):
    (tmp_path / "file").write_text("")
    answer = script("true", env={"HEAT_SCRIPT_WORKING": str(tmp_path / "file" / "work")})
    assert answer.status == 1
    assert str(tmp_path / "file" / "work") in answer.stderr


def test_input_too_large_for_an_environment_is_a_sentence(script):
    answer = script("true", inputs={"big": "x" * 3_000_000})
    assert answer.status == 126
    assert "Argument list too long" in answer.stderr
    assert "xxx" not in answer.stderr


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_library_works_in_every_python_of_the_distributions(
    run_hook, make_deployment, tmp_path: Path, version
):
    env = {"HEAT_SCRIPT_WORKING": str(tmp_path / "w"), "HEAT_SCRIPT_OUTPUTS": str(tmp_path / "o")}
    deployment = make_deployment("echo $foo", inputs={"foo": 1})
    answer = run_hook("script.py", deployment, env=env, python=python_of(version))
    assert (answer.status, answer.stdout, answer.log) == (0, "1\n", "")
