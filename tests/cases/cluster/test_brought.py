"""The result of a case as bytes, and other data in its place."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hotplate.cases.cluster.brought import Brought
from hotplate.errors import HostError, Outcome
from hotplate.verdict.diagnosis import Diagnosis
from hotplate.verdict.noticed import Noticed
from hotplate.verdict.stages import Stage
from hotplate.verdict.verdict import DeploymentResult, ServerResult, StageTime, Subject, Verdict

STAGES = (
    StageTime(Stage.BOOTED, 3.25, "login: \udc80\n", implied=True),
    StageTime(Stage.NETWORK_UP, 4, visible=False),
    StageTime(Stage.METADATA_SERVED, None),
)
VERDICT = Verdict(
    subject=Subject("web.raw", stand_ins=("a volume",), facts={"accelerator": "tcg"}, case="web"),
    outcome=Outcome.FAILED,
    status="CREATE_FAILED",
    reasons=("one\nhint: two", "three"),
    stages=STAGES,
    outputs={"size": [1, {"a": None}]},
    diagnosis=Diagnosis("unknown", Stage.BOOTED, "nothing", "look", evidence=("a", "b")),
    seconds=7.5,
    servers=(
        ServerResult("id", "web", STAGES, (DeploymentResult("d", "script", "CFN_SIGNAL", None),)),
    ),
    decided_by="id",
    noticed=(Noticed("ran-twice", "it ran twice", fails=True),),
    signal=15,
)


@pytest.mark.parametrize("archive", [b"", b"\n\x1f\x8b\n\xff"])
@pytest.mark.parametrize(
    "verdict", [VERDICT, replace(VERDICT, diagnosis=None, stages=(), servers=(), noticed=())]
)
def test_result_survives_a_round_trip(verdict, archive):
    brought = Brought(verdict, "tcp://there:1", "/tmp/a", archive, "a complaint\n")
    assert Brought.from_bytes(brought.to_bytes()) == brought


def spoiled(**changes):
    about = json.loads(Brought(VERDICT, "w").to_bytes().partition(b"\n")[0])
    return json.dumps({**about, "verdict": {**about["verdict"], **changes}}).encode()


@pytest.mark.parametrize(
    "data",
    [
        None,
        Brought(VERDICT, "w"),
        b"",
        b"[]\n",
        b"{}\n",
        b"\x80\x04N.",
        b"[" * 200_000,
        spoiled(outcome="excellent"),
        spoiled(reasons="one"),
        spoiled(reasons=[1]),
        spoiled(stages=[{"stage": "booted", "seconds": "1"}]),
        spoiled(more=1),
        spoiled(subject=None),
        spoiled(signal="15"),
    ],
    ids=lambda data: str(data)[:20],
)
def test_malformed_result_error_is_one_sentence(data):
    with pytest.raises(HostError, match="something else than the result of a case: "):
        Brought.from_bytes(data)
