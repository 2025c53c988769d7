"""The built-in cases of groups: their deployments, and the answers that must come back."""

from __future__ import annotations

import dataclasses

import pytest
from played_guest import Guest

from hotplate.stacks import builtin, template

WORD = "word"


def deployments(made: template.Template) -> set[str]:
    return {
        name
        for name, each in made.template["resources"].items()
        if each["type"].endswith("Deployment")
    }


def good_answers(made: template.Template) -> dict[str, dict[str, object]]:
    """Return the answers of working hooks."""
    word = made.parameters[WORD]
    answers: dict[str, dict[str, object]] = {
        name: {"result": f"{name.removesuffix('_read')} {word}", "deploy_status_code": 0}
        for name in deployments(made)
    }
    answers["docker_cmd"] = {"deploy_stdout": f"docker-cmd {word}\n", "deploy_status_code": 0}
    answers["deployment"] = {
        WORD: word,
        "deploy_stdout": 'script started\nnumber=42 flag=true tree={"fruit": ["apple", "pear"]}\n',
        "deploy_stderr": "script warned\n",
        "deploy_status_code": 0,
    }
    return answers


def test_script_alone_uses_the_built_in_template():
    for groups in ((), ("script",)):
        assert builtin.of(groups, there=builtin.GROUPS).template == template.builtin().template


def test_each_case_has_only_its_own_deployments():
    whole = template.load(builtin.FILE).template["resources"]
    used = set()
    for group in builtin.CASES:
        made = builtin.of([group], there=["script", "puppet"])
        names = set(made.template["resources"])
        used |= names
        assert {f"{each}_config" for each in deployments(made)} <= names
        configs = [made.template["resources"][f"{each}_config"] for each in deployments(made)]
        assert group in {each["properties"]["group"] for each in configs}
        for each in made.template["resources"].values():
            assert set(each.get("depends_on", [])) <= names
    assert used == set(whole)


def test_unsupported_case_is_not_deployed():
    assert deployments(builtin.of(["hiera"])) == {"hiera"}
    assert deployments(builtin.of(["json-file", "cfn-init"])) == {"json_file", "cfn_init"}
    assert builtin.testable(["docker-cmd", "json-file"]) == ["json-file"]


def test_files_are_checked_where_the_hooks_write_them():
    made = builtin.of(["script", "cfn-init", "json-file"])
    files = made.template["resources"]["files"]["properties"]["input_values"]["files"]
    assert files.splitlines() == [
        "cfn-init /etc/hotplate-test-cfn-init",
        "json-file /etc/hotplate-test.json",
    ]
    for name in ("cfn_init", "json_file"):
        config = made.template["resources"][f"{name}_config"]["properties"]["config"]
        assert builtin.CASES[name.replace("_", "-")].leaves in str(config)


def test_all_groups_pass_in_one_stack(play):
    made = builtin.of(builtin.GROUPS)
    played = play(made, Guest(answers=good_answers(made)))
    assert played.verdict.passed, played.verdict.reasons
    assert played.verdict.subject.template == f"the built-in cases of {', '.join(builtin.GROUPS)}"
    tried = {each.detail.get("resource") for each in played.events if each.kind == "resource"}
    assert deployments(made) <= tried


@pytest.mark.parametrize(
    ("spoiled", "problem"),
    [
        ({"salt": {"result": "salt x", "deploy_status_code": 0}}, 'output "salt" is "salt x"'),
        ({"files": {"deploy_status_code": 1}}, '"files"'),
    ],
    ids=["a wrong answer", "no file"],
)
def test_wrong_answer_fails_and_is_named(play, spoiled, problem):
    made = builtin.of(["salt", "hiera", "puppet", "json-file", "script"])
    played = play(made, Guest(answers={**good_answers(made), **spoiled}))
    assert not played.verdict.passed
    assert problem in "\n".join([*played.verdict.reasons, played.verdict.last_line()])


def test_expected_outputs_follow_the_parameters():
    made = builtin.of(["puppet"])
    assert made.expect is not None
    assert made.expect({"puppet": f"puppet {made.parameters[WORD]}"}) == []
    other = dataclasses.replace(made, parameters={WORD: "x"})
    assert other.expect is not None
    assert other.expect({"puppet": "puppet x"}) != []
