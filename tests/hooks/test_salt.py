"""The salt hook with the real Salt, from the lock file that the element installs."""

import json
import os
import stat
from pathlib import Path

import pytest
from programs import program

from .conftest import EVERY_TYPE

VALUES = EVERY_TYPE | {"large": 1e16, "control": "a\x00\x07\x7f\x85\u2028\ufffe"}


@pytest.fixture
def run_salt(hook_of, tmp_path: Path):
    """Run the salt hook on a state, without naming Salt's path; keywords go to make_deployment."""
    return hook_of(
        "salt",
        timeout=240,
        HEAT_SALT_WORKING=tmp_path / "work",
        HEAT_SALT_OUTPUTS=tmp_path / "out",
        SALT_MINION_CONFIG=tmp_path / "minion",
    )


@pytest.fixture
def salt(run_salt, salt_call):
    """Run the salt hook on a state with the real Salt; keywords go to make_deployment."""

    def run(config, *, env=None, **keywords):
        return run_salt(config, env={"HEAT_SALT_CMD": salt_call, **(env or {})}, **keywords)

    return run


def managed(path: Path, template: str) -> str:
    """Return a state that writes the Jinja *template* to *path*."""
    return f"{path}:\n  file.managed:\n    - contents: {template}\n"


def test_inputs_of_every_json_type_are_opts(salt, tmp_path: Path):
    inputs = {f"in_{name}": value for name, value in VALUES.items()}
    answer = salt(
        "#!py\nimport json\n\ndef run():\n"
        f"    got = {{name: __opts__[name] for name in {list(inputs)}}}\n"
        f"    open('{tmp_path}/made', 'w').write(json.dumps(got))\n"
        "    return {'nothing': {'test.succeed_without_changes': []}}\n",
        inputs=inputs,
    )
    assert answer.status == 0, answer.stderr
    assert json.loads((tmp_path / "made").read_text()) == inputs


def test_outputs_are_keys_of_the_result_and_files(salt):
    answer = salt(
        "say it:\n  cmd.run:\n    - name: printf hü > {{ opts['heat_outputs_path'] }}.result\n",
        outputs=["retcode", "return", "result", "fun", "absent"],
        id="the-id",
    )
    assert answer.status == 0, answer.stderr
    returned = answer.outputs.pop("return")
    assert returned == json.loads(answer.stdout)
    assert [state["result"] for state in returned.values()] == [True]
    assert answer.outputs == {"retcode": 0, "result": "hü", "fun": "state.sls"}


def test_map_config_is_yaml_and_keeps_its_order(salt, tmp_path: Path):
    config = {
        "second": {"cmd.run": [{"name": "echo {{ opts['word'] }} >> " + str(tmp_path / "made")}]},
        "first": {"cmd.run": [{"name": "echo two >> " + str(tmp_path / "made")}]},
    }
    answer = salt(config, inputs={"word": "öne"})
    assert answer.status == 0, answer.stderr
    assert (tmp_path / "made").read_text() == "öne\ntwo\n"


def test_failing_state_is_named(salt):
    answer = salt("no way:\n  cmd.run:\n    - name: exit 7\n", outputs=["retcode"])
    assert answer.status not in (0, 127)
    assert '"retcode": 7' in answer.stderr
    assert answer.outputs["retcode"] == answer.status


@pytest.mark.defect("K8")
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("a: [", "while parsing a flow node did not find expected node content in"),
        ("{{ opts['x' }}", "Jinja syntax error: unexpected '}', expected ']'; line 1"),
        ("{{ missing.attr }}", "Jinja variable 'missing' is undefined; line 1"),
        ("{% set x = 1/0 %}", "Jinja error: division by zero ZeroDivisionError: division by zero"),
        ("#!py\ndef run():\n    raise ValueError('odd')\n", "failed: ValueError: odd"),
        ("just text", "SLS the-id does not render to a dictionary"),
    ],
)
def test_state_that_cannot_be_rendered_fails(salt, config, reason):
    """The last line has the cause; Salt itself begins with "Rendering exception occurred"."""
    answer = salt(config, id="the-id")
    assert answer.status not in (0, 127)
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("Salt applied nothing: ")
    assert reason in last
    assert "Traceback" not in last and "---" not in last


def test_state_that_does_not_exist_fails(salt):
    answer = salt("thing:\n  no_such.state: []\n")
    assert answer.status not in (0, 127)
    assert "'no_such.state' is not available" in answer.stderr
    assert "Salt applied nothing" not in answer.stderr


@pytest.mark.parametrize("name", ["environment", "saltenv", "user"])
def test_input_that_would_mislead_salt_is_refused(run_salt, name):
    answer = run_salt("x: y", inputs={name: "planted"}, env={"HEAT_SALT_CMD": "/bin/false"})
    assert answer.status == 1
    assert f'The input "{name}"' in answer.stderr
    assert "planted" not in answer.stderr


@pytest.mark.parametrize("config", ["{% if False %}a: b{% endif %}", "", {}], ids=repr)
def test_state_with_no_work_is_a_success(salt, config):
    """As in heat-agents: formulas are empty where their data needs no state; Salt's code is 2."""
    answer = salt(config)
    assert (answer.status, json.loads(answer.stdout)) == (0, {}), answer.stderr


def test_minion_configuration_of_the_image_is_used(salt, tmp_path: Path):
    (tmp_path / "minion").write_text("from_image: yes it is\nboth: image\nfile_client: remote\n")
    (tmp_path / "minion.d").mkdir()
    (tmp_path / "minion.d" / "more.conf").write_text("from_part: [1]\n")
    template = "{{ [opts['from_image'], opts['from_part'], opts['both']] | json | json }}"
    answer = salt(managed(tmp_path / "made", template), inputs={"both": "input"})
    assert answer.status == 0, answer.stderr
    assert json.loads((tmp_path / "made").read_text()) == ["yes it is", [1], "input"]


def test_inputs_do_not_redirect_salt_and_are_removed_afterwards(salt, tmp_path: Path):
    """Two megabytes are passed all the same."""
    command = "head -c 2000000 /dev/zero | tr '\\0' a; printf '\\377\\000'"
    inputs = {"file_client": "remote", "file_roots": {"base": ["/nowhere"]}, "s": "planted"}
    state = f"much:\n  cmd.run:\n    - name: {json.dumps(command)}\n"
    answer = salt(state, inputs=inputs, id="the-id")
    assert answer.status == 0, answer.stderr
    assert "a" * 2_000_000 in answer.stdout
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"planted" not in path.read_bytes()
    assert "planted" not in answer.log
    state = tmp_path / "work" / "the-id.sls"
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert list((tmp_path / "work.run").iterdir()) == []


def fake(tmp_path: Path, body: str) -> dict[str, str]:
    """Write a program instead of salt-call: a shell script in which $out is the answer's path."""
    salt_call = program(
        tmp_path / "salt-call",
        'while [ $# -gt 0 ]; do [ "$1" = --out-file ] && out=$2; '
        f'[ "$1" = --version ] && echo salt-call 2019.2.0 && exit; shift; done\n{body}',
    )
    return {"HEAT_SALT_CMD": str(salt_call)}


@pytest.mark.defect("K8")
@pytest.mark.parametrize(
    ("returned", "code", "status"),
    [
        ({"a": {"result": True}}, 0, 0),
        ({"a": {"result": True}}, 2, 0),
        ({"a": {"result": True}, "b": {"result": False}}, 0, 1),
        ({"a": {"result": True}, "b": {"result": False}}, 2, 2),
        ({"a": {"result": None}}, 0, 0),
        (["Rendering failed"], 1, 1),
        (["Rendering failed"], 0, 1),
        ("text", 0, 1),
        ({}, 0, 0),
        ({}, 2, 0),
        ({"a": "odd"}, 0, 0),
    ],
)
def test_failure_is_judged_by_the_states_results(run_salt, tmp_path: Path, returned, code, status):
    document = json.dumps({"local": {"return": returned, "retcode": code}})
    answer = run_salt("x: y", env=fake(tmp_path, f"cat > $out <<'E'\n{document}\nE"))
    assert answer.status == status
    output = answer.stderr if status else answer.stdout
    assert output.startswith(json.dumps(returned, indent=2) + "\n")


@pytest.mark.defect("K8")
@pytest.mark.parametrize("written", ["", "null", "{", '{"local": 5}', "[]"], ids=repr)
def test_missing_answer_from_salt_is_a_failure(run_salt, tmp_path: Path, written):
    answer = run_salt(
        "x: y", env=fake(tmp_path, f"printf '%s' '{written}' > $out; echo so; exit 0")
    )
    assert answer.status == 1
    assert answer.stdout == "so\n"


def test_run_directory_of_a_killed_run_is_replaced(run_salt, tmp_path: Path):
    left = tmp_path / "work.run" / "the-id" / "old"
    left.mkdir(parents=True)
    body = 'ls "$(dirname "$out")"; printf \'{"local": {"return": {}, "retcode": 0}}\' > $out'
    assert run_salt("x: y", id="the-id", env=fake(tmp_path, body)).status == 0
    assert not left.parent.exists()


def test_hook_keeps_to_the_contract(check_hook, salt_call):
    checked = check_hook(
        "salt.py", PATH=os.pathsep.join([os.environ["PATH"], str(Path(salt_call).parent)])
    )
    assert checked.problems == {}
    assert checked.not_tried == {"large-output", "binary-output"}
    assert checked.excepted == set()
