"""A pass over the deployments; each defect of heat-agents is a test here."""

import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from programs import python_of
from stub_server import Reply

from .conftest import PYTHON

HOOKS = Path(__file__).resolve().parents[3] / "hooks"
RUNNER = HOOKS / "55-heat-config"


def test_a_deployment_runs_once_and_is_signalled_once(guest, heat, cfn):
    guest.metadata(cfn(outputs=["r"]))
    for _ in range(3):
        assert guest.run().status == 0
    assert guest.runs("d-1") == 1
    assert heat.signals == [
        {"r": "value", "deploy_stdout": "out", "deploy_stderr": "", "deploy_status_code": 0}
    ]
    assert guest.state_of("d-1") == "signalled"


def test_the_steps_are_on_the_console_in_order(guest, heat, cfn):
    log = guest.run(cfn(name="two\nlines")).log
    wanted = [
        f'heat-config: {event} id=d-1 group=shell name="two\\nlines"'
        for event in ("received", "started", "finished", "signalled")
    ]
    wanted[2] += " status=0"
    wanted[3] += " status=0"
    assert guest.console.read_text().splitlines() == wanted
    assert log.splitlines() == wanted
    assert [line.partition(" ")[2] for line in guest.log("d-1").splitlines()] == wanted


def test_every_file_is_private(guest, heat, cfn):
    guest.metadata(cfn())
    guest.document.chmod(0o644)
    guest.run()
    assert stat.S_IMODE(guest.document.stat().st_mode) == 0o600
    for directory in (guest.state, guest.logs):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        for path in directory.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.defect("H10", "K4")
def test_values_and_credentials_are_neither_kept_nor_logged(guest, heat, cfn):
    deployment = cfn(inputs={"password": "planted-input"}, outputs=["r"])
    deployment["inputs"].append({"name": "deploy_password", "value": "planted-deploy"})
    guest.shell_hook("shell", "cat >/dev/null; " + "echo '{\"deploy_status_code\":0}'\n")
    log = guest.run(deployment).log
    everything = guest.text_everywhere() + log.encode()
    for planted in (b"planted", b"c2VjcmV0", b"Signature"):
        assert planted not in everything


@pytest.mark.defect("N6")
def test_failed_signal_does_not_show_the_signature(guest, cfn, nobody):
    done = guest.run(cfn(server=nobody))
    assert "Signature" not in done.log
    assert "c2VjcmV0" not in done.log + guest.console.read_text() + guest.log("d-1")


@pytest.mark.defect("H3")
@pytest.mark.parametrize(
    ("group", "advice"),
    [
        ("puppet", "Install the element heat-config-puppet in the image, or correct the group."),
        ("kubelet", 'use the group "script" with "podman kube play", or the group "docker-cmd".'),
        ("atomic", 'use the group "docker-cmd" with podman.'),
        ("docker", 'use the group "docker-cmd".'),
        *((group, "Correct the group: no hook can have that name.") for group in ("a b", "☃")),
        # Reduced to "shell", as heat-agents do, and never a path.
        ("../shell", "Correct the group: no hook can have that name."),
        ("", "Install the element heat-config- in the image, or correct the group."),
    ],
)
def test_group_without_a_hook_fails_with_advice(guest, heat, cfn, group, advice):
    if group == "../shell":
        guest.hooks.joinpath("shell").unlink()
    guest.metadata(cfn(group=group, id="x"))
    for _ in range(2):
        assert guest.run().status == 0
    (body,) = heat.signals
    assert body["deploy_status_code"] == 1
    assert body["deploy_stderr"].startswith("There is no hook for the group ")
    assert body["deploy_stderr"].rstrip("\n").endswith(advice)
    assert "rejected" in guest.console.read_text()


@pytest.mark.parametrize("group", ["os-apply-config", "Heat::Ungrouped"])
def test_groups_that_need_no_program_are_complete(guest, heat, cfn, group):
    assert guest.run(cfn(group=group)).status == 0
    assert heat.signals == [{"deploy_stdout": "", "deploy_stderr": "", "deploy_status_code": 0}]


@pytest.mark.parametrize("action", ["CREATE", "UPDATE", "DELETE", "SUSPEND", "RESUME", "BACKUP"])
def test_a_component_runs_the_config_of_the_action(guest, heat, cfn, action):
    config = {
        "configs": [
            {"actions": ["CREATE", "UPDATE"], "config": "one", "tool": "shell"},
            {"actions": ["DELETE", "CREATE"], "config": "two", "tool": "shell"},
            {"actions": ["SUSPEND"], "config": "three", "tool": "shell"},
            {"actions": ["RESUME", "BACKUP"], "config": "four", "tool": "shell"},
        ]
    }
    wanted = {"CREATE": "one", "UPDATE": "one", "DELETE": "two", "SUSPEND": "three"}
    guest.shell_hook("shell")
    guest.hook(
        "shell",
        f"#!{PYTHON} -IS\nimport json, sys\nd = json.load(sys.stdin)\n"
        "print(json.dumps({'deploy_stdout': d['config'] + d['group'], 'deploy_status_code': 0}))\n",
    )
    guest.run(cfn(config, group="component", action=action))
    assert heat.signals[0]["deploy_stdout"] == wanted.get(action, "four") + "shell"


@pytest.mark.defect("H3")
@pytest.mark.parametrize(
    "config",
    [
        {"configs": [{"actions": ["CREATE"], "config": "x", "tool": "shell"}]},
        {"configs": []},
        {"configs": [5, {"actions": 7}]},
        {"configs": None},
        {},
        "text",
        None,
    ],
    ids=repr,
)
def test_a_component_without_the_action_is_signalled_as_failed(guest, heat, cfn, config):
    assert guest.run(cfn(config, group="component", action="DELETE")).status == 0
    (body,) = heat.signals
    assert body["deploy_status_code"] == 1
    assert "component" in body["deploy_stderr"]


@pytest.mark.defect("H7")
@pytest.mark.parametrize(
    "hostile",
    [
        "../../x/evil",
        "..",
        "",
        "a/b",
        "a.b",
        "x\n",
        "x\0",
        "-rf",
        "ü",
        "a" * 500,
        None,
        7,
        ["x"],
        {},
    ],
    ids=repr,
)
def test_id_that_is_no_plain_name_is_signalled_as_failed(guest, heat, cfn, hostile):
    deployment = cfn(id="x")
    deployment["id"] = hostile
    guest.metadata(deployment)
    before = set(guest.root.rglob("*")) | {guest.state, guest.logs}
    for _ in range(2):
        assert guest.run().status == 0
    (body,) = heat.signals
    assert body["deploy_status_code"] == 1
    assert "id" in body["deploy_stderr"]
    for path in set(guest.root.rglob("*")) - before:
        assert path.parent in (guest.state, guest.logs)
    assert not list(guest.counts.iterdir())


DEEP = "[" * 90_000 + "]" * 90_000
HUGE = ["1" + "0" * 5000, '"1' + "0" * 5000 + '"']


@pytest.mark.defect("H4", "H5", "H6")
@pytest.mark.parametrize(
    ("answer", "exit_status", "status", "part"),
    [
        ('{"deploy_stdout":"x","deploy_status_code":0}', 0, 0, ""),
        ('{"deploy_stdout":"x","deploy_status_code":"0"}', 0, 0, ""),
        ('{"deploy_stdout":"x","deploy_status_code":5}', 0, 5, ""),
        ('{"deploy_stdout":"x","deploy_status_code":true}', 0, 1, ""),
        ('{"deploy_stdout":"x","deploy_status_code":0}', 9, 9, "exit status 9"),
        ('{"deploy_stdout":"x","deploy_status_code":5}', 9, 5, ""),
        ('{"deploy_stdout":"x"}', 0, 1, "without a deploy_status_code"),
        ('{"deploy_status_code":null}', 0, 1, "deploy_status_code"),
        ('{"deploy_status_code":"five"}', 0, 1, "deploy_status_code"),
        ("", 0, 1, "gave no answer"),
        ("   ", 0, 1, "gave no answer"),
        ("", 3, 3, "gave no answer"),
        ("[1]", 0, 1, "not an object"),
        ("plain text", 0, 0, ""),
        ("plain text", 4, 4, ""),
        ('{"cut', 4, 4, ""),
        *(
            (f'{{"deploy_status_code": {value}}}', 0, 1, "usable deploy_status_code")
            for value in ("NaN", "1e999", "-1e999", "Infinity", "1e300", "[0]", *HUGE)
        ),
        (f'{{"deploy_status_code": 0, "r": {DEEP}}}', 0, 1, "nested too deeply"),
        (f'{{"deploy_status_code": 0, "deploy_stdout": {DEEP}}}', 0, 1, "nested too deeply"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_answers_are_validated(guest, heat, cfn, answer, exit_status, status, part):
    (guest.root / "printed").write_text(answer)
    guest.hook("shell", f"#!/bin/sh\ncat {guest.root}/printed\nexit {exit_status}\n")
    assert guest.run(cfn(outputs=["r"]), cfn(id="d-2", group="os-apply-config")).status == 0
    assert guest.state_of("d-1") == guest.state_of("d-2") == "signalled"
    body = heat.signals[0]
    assert body["deploy_status_code"] == status
    assert part in body["deploy_stderr"]
    if answer == "plain text":
        assert body["deploy_stdout"] == "plain text"


def test_only_declared_outputs_are_signalled_and_in_text_for_a_database(guest, heat, cfn):
    answer = (
        '{"unset_hook":1,"r":[1,{"a":"\\ud800"}],"deploy_stdout":"\\udfff","deploy_status_code":0}'
    )
    guest.hook("shell", f"#!/bin/sh\nprintf %s '{answer}'\n")
    guest.run(cfn(outputs=["r", "s"]))
    assert heat.signals[0].keys() == {"r", "deploy_stdout", "deploy_stderr", "deploy_status_code"}
    assert heat.signals[0]["r"] == [1, {"a": "?"}]
    assert heat.signals[0]["deploy_stdout"] == "?"


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (
            "#!/no/such/interpreter -x\n",
            126,
            'cannot be run: the interpreter "/no/such/interpreter" in its first line does not '
            "exist.\n",
        ),
        (
            "#!/bin/sh\r\necho '{}'\r\n",
            126,
            r'cannot be run: the interpreter "/bin/sh\r" in its first line does not exist; its '
            "lines end with CR LF, where LF alone is expected.\n",
        ),
        (
            "#!/usr/bin/env python3\r\nprint()\r\n",
            127,
            'The hook "shell" gave no answer and ended with exit status 127; its lines end with '
            "CR LF, where LF alone is expected.\n",
        ),
        (
            f"#!{PYTHON} -IS\r\nprint()\r\n",
            2,
            "and ended with exit status 2; its lines end with CR LF, where LF alone is expected.\n",
        ),
        (
            "#!/bin/sh -x\r\necho '{}'\r\n",
            2,
            "; its lines end with CR LF, where LF alone is expected.\n",
        ),
        ("echo '{}'\n", 126, 'cannot be run: its first line does not begin with "#!".\n'),
        ("\x7fELF", 126, "cannot be run: Exec format error.\n"),
    ],
    ids=["interpreter", "cr", "cr-env", "cr-python", "cr-argument", "no-shebang", "elf"],
)
def test_hook_that_cannot_be_run_is_explained_in_a_sentence(guest, heat, cfn, text, status, words):
    guest.hook("shell", text)
    assert guest.run(cfn()).status == 0
    assert heat.signals[0]["deploy_status_code"] == status
    assert heat.signals[0]["deploy_stderr"].endswith(words)


@pytest.mark.parametrize(
    ("group", "file"),
    [
        ("script", "script.py"),
        ("docker-cmd", "docker_cmd.py"),
        ("docker-cmd", "docker_cmd"),
        ("script", "Script"),
        ("my_hook", "my-hook.sh"),
    ],
)
def test_file_with_a_name_close_to_the_hook_is_named(guest, heat, cfn, group, file):
    (guest.hooks / "script").unlink()
    guest.hook(file, "#!/bin/sh\n")
    guest.hook("other.py", "#!/bin/sh\n")
    assert guest.run(cfn(group=group)).status == 0
    stderr = heat.signals[0]["deploy_stderr"]
    assert stderr.startswith(f'There is no hook for the group "{group}" on this machine; ')
    assert stderr.endswith(f": mv {guest.hooks / file} {guest.hooks / group}\n")


@pytest.mark.parametrize("marker", ["", "{}", '{"id": "d-1", "inputs": []}'])
def test_marks_of_heat_agents_count_as_run(guest, heat, cfn, marker):
    """Its runner writes the deployment itself, its heat-config-rebuild-deployed an empty file."""
    guest.state.mkdir(mode=0o755)
    (guest.state / "d-1.json").write_text(marker)
    guest.metadata(cfn(inputs={"deploy_password": "planted"}))
    for _ in range(2):
        assert guest.run().status == 0
    assert guest.runs("d-1") == 0
    assert heat.requests == []
    assert b"c2VjcmV0" not in guest.text_everywhere()
    assert "run by heat-agents" in guest.command("status").stdout


WHOLE = '{"id":"d-1","heat_config":{"version":1,"state":"signalled"}}'


@pytest.mark.parametrize(
    "damage",
    [
        "junk",
        WHOLE[:20],
        "\0" * 400,
        "[]",
        "5",
        '{"heat_config":5}',
        '{"heat_config":{}}',
        '{"heat_config":{"version":1,"state":"odd"}}',
        '{"heat_config":{"version":1,"state":[]}}',
    ],
)
def test_a_damaged_record_is_reported_and_answered_as_failed(guest, heat, cfn, damage):
    guest.state.mkdir(mode=0o700)
    (guest.state / "d-1.json").write_text(damage)
    assert "damaged" in guest.command("status").stdout
    guest.metadata(cfn())
    for _ in range(2):
        assert guest.run().status == 0
    assert guest.runs("d-1") == 0
    (body,) = heat.signals
    assert body["deploy_status_code"] == 1
    assert "record" in body["deploy_stderr"]
    assert "is damaged" in guest.console.read_text()
    assert guest.state_of("d-1") == "signalled"


def test_damaged_record_of_a_gone_deployment_is_kept_as_damaged(guest, heat, cfn):
    guest.state.mkdir(mode=0o700)
    (guest.state / "d-1.json").write_text("junk")
    assert guest.run(cfn(id="d-2")).status == 0
    assert guest.run(cfn(id="d-2"), cfn()).status == 0
    assert guest.runs("d-1") == 0
    assert heat.signals[-1]["deploy_status_code"] == 1


def test_inputs_of_other_types_keep_them(guest, heat, cfn):
    guest.hook(
        "shell",
        f"#!{PYTHON} -IS\nimport json, sys\nd = json.load(sys.stdin)\n"
        "print(json.dumps({'deploy_stdout': json.dumps(d['inputs'][:3]), "
        "'deploy_status_code': 0}))\n",
    )
    deployment = cfn()
    given = [
        {"name": "a", "type": "Number", "value": 5},
        {"name": "b", "type": "Json", "value": {"x": None}},
        {"name": "c", "value": 7},
    ]
    deployment["inputs"] = given + deployment["inputs"]
    guest.run(deployment)
    assert json.loads(heat.signals[0]["deploy_stdout"]) == given


#: Prints this Python's maximum depth: 995 up to 3.11, 1,497 in 3.12, 9,998 in 3.13.
DEEPEST = """
import json
read, refused = 500, 1 << 20
while refused - read > 1:
    depth = (read + refused) // 2
    try:
        json.loads("[" * depth + "]" * depth)
        read = depth
    except RecursionError:
        refused = depth
print(read)
"""


@pytest.fixture(scope="module")
def deepest() -> int:
    done = subprocess.run([PYTHON, "-c", DEEPEST], capture_output=True, check=True)
    return int(done.stdout)


def test_deployments_nested_too_deeply_fail_alone(guest, heat, cfn, deepest):
    """Python reads a little deeper than it writes; a list that it cannot read is no list at all."""
    config, whole = cfn(id="config"), cfn(id="whole")
    config["config"], whole["id"] = "DEEP", "DEEP"
    bad = [whole, config]
    for kind, name in (("Json", "x"), ("Json", "deploy_action"), ("String", "x")):
        bad.append(cfn(id=f"{name}-{kind}"))
        bad[-1]["inputs"].append({"name": name, "type": kind, "value": "DEEPER"})
    text = json.dumps([*bad, cfn(id="good")])
    errors = []
    for depth in range(deepest - 20, deepest):
        shutil.rmtree(guest.state, ignore_errors=True)
        heat.requests.clear()
        filled = text
        # All of them at the same depth of the document.
        for name, levels in (("DEEPER", depth - 2), ("DEEP", depth)):
            filled = filled.replace(f'"{name}"', "[" * levels + "]" * levels)
        guest.document.write_text(filled)
        done = guest.run()
        assert "failed unexpectedly" not in done.log
        if "no JSON list" in done.log:
            continue
        assert done.status == 0
        assert len(heat.signals) == len(bad) + 1
        assert heat.signals[-1]["deploy_status_code"] == 0
        errors.append([body["deploy_stderr"] for body in heat.signals])
    assert errors
    for field in (1, 2):
        assert any("nested too deeply" in words[field] for words in errors), errors


@pytest.mark.parametrize(
    ("printed", "warned"),
    [
        ('a stray line\n{"deploy_status_code": 7}\n', True),
        ('a stray line\n{\n "deploy_stdout": "x",\n "deploy_status_code": 7\n}\n', True),
        ('more\n{"a": 1}\n{"deploy_status_code": 7}\n', True),
        ("only text\n", False),
        ('text with\n{"json": "of its own"}\n', False),
        ('cut\n{"deploy_status_code": 7', False),
        ("braces\n{\n{\n{", False),
    ],
)
def test_answer_behind_a_stray_line_is_text_with_a_warning(guest, heat, cfn, printed, warned):
    """The deployment is complete, as under heat-agents; but the hook's author must see why."""
    (guest.root / "printed").write_text(printed)
    guest.hook("shell", f"#!/bin/sh\ncat {guest.root}/printed\n")
    log = guest.run(cfn()).log
    (body,) = heat.signals
    assert body["deploy_status_code"] == 0
    assert body["deploy_stdout"] == printed
    assert ("before its JSON answer" in body["deploy_stderr"]) is warned
    assert ("before its JSON answer" in log) is warned


def test_a_hook_that_is_not_executable_is_named(guest, heat, cfn):
    path = guest.hooks / "shell"
    path.chmod(0o644)
    assert guest.run(cfn()).status == 0
    (body,) = heat.signals
    assert body["deploy_status_code"] == 1
    assert f'"{path}" is not executable' in body["deploy_stderr"]


def test_the_runner_adds_nothing_to_a_hooks_stderr(guest, heat, cfn):
    guest.hook("shell", "#!/bin/sh\necho warn >&2\necho text\n")
    guest.run(cfn())
    assert heat.signals[0]["deploy_stderr"] == "warn\n"


@pytest.mark.parametrize(("given", "seen"), [("C", "unset"), ("C.UTF-8", "C.UTF-8")])
def test_a_script_has_the_locale_of_heat_agents_unit(guest, heat, cfn, given, seen):
    """The unit of tripleo-image-elements sets no LC_ALL; ours has C, for the agent alone."""
    guest.settings.update(LC_ALL=given, LANG="C.UTF-8")
    guest.run(cfn("echo ${LC_ALL-unset} $LANG", group="script"))
    assert heat.signals[0]["deploy_stdout"] == f"{seen} C.UTF-8\n"


@pytest.mark.defect("H13", "K13")
def test_values_that_heat_omits_are_empty(guest, heat, cfn):
    deployment = cfn('echo "[$gone]"', group="script")
    deployment["inputs"] += [{"name": "gone", "type": "String"}, {"type": "String"}, 5, None]
    deployment["outputs"] = [None, {}, {"name": 5}, {"name": "r"}]
    deployment["options"] = None
    assert guest.run(deployment).status == 0
    assert heat.signals[0]["deploy_stdout"] == "[]\n"


def test_null_in_an_input_of_heats_own_is_no_address(guest, heat, cfn):
    """As text it would be "None": hooks see that, as in heat-agents, and the runner does not."""
    deployment = cfn("echo $deploy_signal_id", group="script")
    for entry in deployment["inputs"]:
        if entry["name"] == "deploy_signal_id":
            entry.update(type="String", value=None)
    assert "Heat sent no address to signal to" in guest.run(deployment).log
    assert guest.result("d-1")["deploy_stdout"] == "None\n"


def test_repeated_id_runs_once(guest, heat, cfn):
    assert "twice" in guest.run(cfn(), cfn()).log
    assert guest.runs("d-1") == 1
    assert len(heat.signals) == 1


def test_two_deployments_of_one_name_are_both_run_in_order(guest, heat, cfn):
    guest.run(*(cfn(id=f"d-{n}", name="same") for n in range(5)))
    assert [r.path.partition("?")[0][-3:] for r in heat.requests] == [f"d-{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("text", "status", "part"),
    [
        (None, 1, "cannot be read"),
        ("", 0, ""),
        ("\n", 0, ""),
        ("null", 0, ""),
        ("[]", 0, ""),
        ("{}", 1, "no JSON list"),
        ("{", 1, "no JSON list"),
        ('"x"', 1, "no JSON list"),
        ("7", 1, "no JSON list"),
        ("[" * 50_000, 1, "no JSON list"),
        ("[null, 5, []]", 0, "not an object"),
    ],
    ids=lambda v: repr(v)[:12],
)
def test_document_that_is_no_list_is_reported(guest, text, status, part):
    if text is not None:
        guest.document.write_text(text)
    done = guest.run()
    assert done.status == status
    assert part in done.log


def test_undelivered_result_is_sent_although_the_document_is_unreadable(guest, heat, cfn):
    heat.reply = lambda request: Reply(403)
    guest.run(cfn())
    assert guest.state_of("d-1") == "finished"
    heat.reply = lambda request: Reply()
    guest.document.unlink()
    guest.run()
    assert guest.state_of("d-1") == "signalled"


@pytest.mark.defect("H10", "H17")
def test_state_of_gone_deployments_is_forgotten_after_a_while(guest, heat, cfn):
    guest.config.write_text("forget_after = 0\nkeep_logs = 0\n")
    guest.run(cfn(), cfn(id="d-2"))
    guest.run(cfn(id="d-2"))
    assert not list(guest.state.glob("d-1*"))
    assert not list(guest.logs.glob("d-1*"))
    assert guest.state_of("d-2") == "signalled"


@pytest.mark.parametrize("outage", ["", "null", "[]", None, "[{}]"])
def test_deployments_missing_for_a_while_are_not_run_twice(guest, heat, cfn, outage):
    guest.run(cfn())
    if outage is None:
        guest.document.unlink()
    else:
        guest.document.write_text(outage)
    guest.run()
    guest.run(cfn())
    assert guest.runs("d-1") == 1
    assert sum("resources/d-1" in r.path for r in heat.requests) == 1
    assert "gone" not in guest.record("d-1")["heat_config"]


def test_two_runners_do_not_run_at_once(guest, heat, cfn, wait_until):
    guest.shell_hook("shell", guest.gate + "echo '{\"deploy_status_code\":0}'\n")
    guest.metadata(cfn())
    first = guest.start()
    wait_until(lambda: guest.runs("d-1") == 1)
    done = guest.run()
    assert done.status == 75
    assert "another" in done.log
    guest.open_gate()
    first.communicate(timeout=30)
    assert first.returncode == 0
    assert len(heat.signals) == 1
    assert guest.runs("d-1") == 1


@pytest.mark.defect("N3")
def test_full_answer_is_on_disk_and_a_trimmed_one_is_signalled(guest, heat, cfn):
    config = (
        "#!/bin/sh\necho first; head -c 2000000 /dev/zero | tr '\\0' '\\1'; echo last\n"
        "head -c 2000000 /dev/urandom >$heat_outputs_path.r\nprintf small >$heat_outputs_path.s"
    )
    assert guest.run(cfn(config, group="script", outputs=["r", "s"])).status == 0
    (request,) = heat.requests
    assert len(request.body) <= 950_000
    body = request.json
    assert body["s"] == "small"
    assert body["deploy_status_code"] == 0
    assert body["deploy_stdout"].startswith("first\n")
    assert body["deploy_stdout"].endswith("last\n")
    whole = guest.logs / "d-1.stdout"
    assert (
        f"characters are left out here; the whole is on the server in {whole}"
        in body["deploy_stdout"]
    )
    assert "d-1.notify.json" in body["r"]
    assert whole.stat().st_size == 2_000_011
    assert len(guest.result("d-1")["deploy_stdout"]) == 2_000_011


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_library_works_in_every_python_of_the_distributions(guest, heat, cfn, version):
    guest.metadata(cfn(), cfn(id="d-2", group="none"), cfn(id="d-3", options={"timeout": 5}))
    assert guest.run(python=python_of(version)).status == 0
    assert [body["deploy_status_code"] for body in heat.signals] == [0, 1, 0]


PLAIN = "#!/usr/bin/python3 -IS\n"
LOOK = """
import os, signal, sys
print(__name__, sys.argv == [__file__], sys.argv[0] == os.environ["HOOK"])
print(sorted(n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN))
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), oct(os.umask(0)), os.getcwd())
print(sorted((n, v) for n, v in os.environ.items() if n not in ("HOOK", "HEAT_CONFIG_CAPTURE")))
print([number for number in range(3, 64) if os.path.exists(f"/proc/self/fd/{number}")
       and os.readlink(f"/proc/self/fd/{number}") != "/dev/null"])
print(os.getsid(0) == os.getpgid(0) == os.getpid(), open("/proc/self/comm").read() == "look\\n")
print(sys.stdin.read()[:1], sys.stdout.encoding)
print("a warning", file=sys.stderr)
sys.exit(int(os.environ["STATUS"]))
"""


@pytest.mark.parametrize("status", ["0", "3"])
@pytest.mark.parametrize("locale", ["C", ""])
def test_plain_python_hook_finds_the_same_in_a_fork_as_in_a_python(
    guest, heat, cfn, status, locale
):
    guest.settings.update(STATUS=status, LC_ALL=locale, HOOK=str(guest.hooks / "look"))
    answers = []
    for line in (PLAIN, "#!/usr/bin/python3 -ISu\n"):
        guest.hook("look", line + LOOK)
        assert guest.run(cfn(group="look", id=f"d-{len(answers)}")).status == 0
        answers.append(heat.signals[-1])
    assert answers[0] == answers[1]
    assert "True" in answers[0]["deploy_stdout"]
    assert "False" not in answers[0]["deploy_stdout"]


@pytest.mark.parametrize(
    ("line", "fork"),
    [
        (PLAIN, True),
        ("#!/usr/bin/python3\n", False),
        ("#!/usr/bin/env python3\n", False),
    ],
)
def test_hooks_in_plain_python_run_in_forks(guest, heat, cfn, line, fork):
    guest.hook("look", line + "import sys; print('heat_config.runner' in sys.modules)")
    guest.run(cfn(group="look"))
    assert heat.signals[0]["deploy_stdout"] == f"{fork}\n"


def test_hook_for_another_library_has_a_python_of_its_own(guest, heat, cfn, tmp_path):
    package = tmp_path / "library" / "heat_config"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "hook.py").write_text("WHICH = 'another'\n")
    driver = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(HOOKS)!r})\n"
        "from heat_config import runner\n"
        f"os.environ['HEAT_CONFIG_LIB'] = {str(package.parent)!r}\n"
        "sys.exit(runner.main())\n"
    )
    find = "import os, sys\nsys.path.insert(0, os.environ['HEAT_CONFIG_LIB'])\n"
    guest.hook("look", PLAIN + find + "from heat_config import hook\nprint(hook.WHICH)\n")
    guest.metadata(cfn(group="look"))
    subprocess.run([PYTHON, "-IS", "-c", driver], env=guest.environment, timeout=60, check=True)
    assert heat.signals[0]["deploy_stdout"] == "another\n"
