"""Every deployment is signalled, for any answer of a hook and any error with its result."""

import json
import os
import pkgutil
from pathlib import Path

import pytest
from heat_config.settings import Settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HOOKS = str(Path(__file__).resolve().parents[3] / "hooks")
STATUS = '"deploy_status_code": 0'


@pytest.fixture
def answering(guest):
    """Make the hook "shell" print *answer*, bytes."""

    def answer(data):
        (guest.root / "printed").write_bytes(data)

    guest.hook("shell", f"#!/bin/sh\ncat >/dev/null\ncat {guest.root}/printed\n")
    return answer


def _no_json(word):
    raise AssertionError(f"{word} is no JSON")


def strictly(data):
    """Parse JSON as servers in other languages do (RFC 8259): no NaN, and text that is UTF-8."""
    value = json.loads(data, parse_constant=_no_json)
    json.dumps(value, ensure_ascii=False).encode()
    return value


@pytest.mark.parametrize(
    ("output", "sent"),
    [
        ("1e999", "inf"),
        ("[-1e999, NaN, 1.5]", ["-inf", "nan", 1.5]),
        ("9" * 5000, "9" * 5000),
        ("9" * 4300, 10**4300 - 1),
        ('"\\ud800x"', "?x"),
        ('{"\\udfff": ["\\ud800", "\\ud83c\\udf72"]}', {"?": ["?", "🍲"]}),
        ('"a\\u0000b"', "a\0b"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_output_that_json_cannot_carry_is_text(guest, heat, cfn, answering, output, sent):
    answering(f'{{"r": {output}, {STATUS}}}'.encode())
    assert guest.run(cfn(outputs=["r"])).status == 0
    body = strictly(heat.requests[0].body)
    assert body == {"r": sent, "deploy_stdout": "", "deploy_stderr": "", "deploy_status_code": 0}


@pytest.fixture
def one_pass(guest, runner):
    """Do one pass in this process; return its exit status."""
    before = os.umask(0o022), os.getcwd()  # noqa: PTH109

    def run():
        return runner.with_state(Settings(guest.environment), lambda one: one.run())

    yield run
    os.umask(before[0])
    os.chdir(before[1])


@pytest.fixture
def unsignalled(cfn):
    """A factory of deployments that need no server."""

    def make(**keywords):
        deployment = cfn(**keywords)
        deployment["inputs"] = [{"name": "deploy_signal_transport", "value": "NO_SIGNAL"}]
        return deployment

    return make


NUMBERS = st.sampled_from(["1e999", "-1e999", "NaN", "-Infinity", "9" * 5000, "0", "1.5", "-0.0"])
STRINGS = st.sampled_from(['"\\ud800"', '"\\u0000"', '"0"', '"1e999"', '"text"', '"\x00"', '"'])
ODD = st.one_of(
    NUMBERS,
    STRINGS,
    st.sampled_from(["null", "true", "{}", "[]", "{1: 2}", '{"": NaN}', '{"\\udfff": 1e999}']),
    st.integers(900, 1100).map(lambda depth: "[" * depth + "]" * depth),
    st.integers(300, 2000).map(lambda depth: '{"a":' * depth + "1e999" + "}" * depth),
    st.integers(1400, 10_100).map(lambda depth: "[" * depth + "]" * depth),
    st.recursive(
        NUMBERS | STRINGS, lambda inner: st.lists(inner).map(", ".join).map("[{}]".format)
    ),
)
KEYS = st.sampled_from(
    ["deploy_status_code", "deploy_stdout", "deploy_stderr", "r", "\\ud800", "", "other"]
)
ANSWERS = st.lists(st.tuples(KEYS, ODD), max_size=5).map(
    lambda pairs: "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
)


def test_any_answer_is_a_result_that_is_signalled(guest, answering, unsignalled, one_pass):
    guest.metadata(unsignalled(outputs=["r", "deploy_status_code"]))

    @settings(
        max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(ANSWERS | ODD)
    def check(answer):
        answering(answer.encode())
        for path in guest.state.iterdir() if guest.state.exists() else ():
            path.unlink()
        assert one_pass() == 0
        assert guest.state_of("d-1") == "signalled"
        signalled = strictly((guest.state / "d-1.notify.json").read_bytes())
        assert type(signalled["deploy_status_code"]) is int
        assert isinstance(signalled["deploy_stdout"], str)
        assert isinstance(signalled["deploy_stderr"], str)

    check()


# Each step from the search for a hook to the signal, as the runner calls it.
STEPS = [
    ("launcher.find_hook", "hook got"),
    ("launcher.Launcher._start", "hook got"),
    ("execution.Execution.open", "hook got"),
    ("execution.forks.fits", "hook got"),
    ("execution.Execution._answer", "hook got"),
    ("execution.result.read_answer", "hook got"),
    ("execution.result.stray", "hook got"),
    ("journal.Journal.make_room", "hook got"),
    ("leftovers.Leftovers.remove_outputs", "hook got"),
    ("state.Store.save_result", "cannot be kept"),
    ("delivery.result.trim", "cannot be sent"),
]
ERRORS = (OverflowError, ValueError, RecursionError, MemoryError, AssertionError)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("step", "words"), STEPS, ids=[step for step, _words in STEPS])
def test_exception_in_any_step_is_a_failure_that_is_signalled(
    guest, heat, cfn, one_pass, monkeypatch, step, words, error
):
    """The step raises once: recording the failure goes through some of the same steps."""
    raised = []
    owner, _, name = step.rpartition(".")
    place = pkgutil.resolve_name(f"heat_config.{owner}")
    real = getattr(place, name)

    def once(*arguments, **keywords):
        if not raised:
            raised.append(True)
            raise error("secret")
        return real(*arguments, **keywords)

    monkeypatch.setattr(place, name, once)
    guest.metadata(cfn(), cfn(id="d-2", group="os-apply-config"))
    one_pass()
    assert raised
    assert [body["deploy_status_code"] for body in heat.signals] == [1, 0]
    assert error.__name__ in heat.signals[0]["deploy_stderr"]
    assert words in heat.signals[0]["deploy_stderr"]
    assert guest.state_of("d-1") == guest.state_of("d-2") == "signalled"
    assert b"secret" not in guest.text_everywhere()
    assert one_pass() == 0
    assert len(heat.signals) == 2


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "gone"])
def test_exception_in_a_recovery_is_a_failure_that_is_signalled(
    guest, heat, cfn, one_pass, monkeypatch, listed
):
    """An interrupted run, in the metadata or gone from it, has no other way to be signalled."""
    guest.metadata(cfn())
    assert one_pass() == 0
    record = guest.record("d-1")
    record["inputs"] = cfn()["inputs"]
    record["heat_config"].update(state="started", boot="another")
    (guest.state / "d-1.json").write_text(json.dumps(record))
    guest.metadata(*([cfn()] if listed else ()), cfn(id="d-2", group="os-apply-config"))

    def broken(_self):
        raise OverflowError

    monkeypatch.setattr("heat_config.execution.Execution.recover", broken)
    assert one_pass() == 0
    assert sorted(body["deploy_status_code"] for body in heat.signals[1:]) == [0, 1]
    assert guest.state_of("d-1") == "signalled"
