from __future__ import annotations

import pytest

from hotplate.verdict.stages import ORDER, STAGES, Stage, first_missing


def test_table_has_each_stage_once_in_order():
    assert tuple(row.stage for row in STAGES) == ORDER
    assert all(row.look for row in STAGES)


@pytest.mark.parametrize(
    ("reached", "missing"),
    [
        (set(), Stage.BOOTED),
        ({Stage.BOOTED}, Stage.NETWORK_UP),
        ({Stage.AGENT_POLLED}, Stage.DEPLOYMENT_DELIVERED),
        ({Stage.SIGNAL_ACCEPTED}, None),
        (set(ORDER), None),
    ],
)
def test_later_stage_proves_earlier_ones(reached, missing):
    assert first_missing(reached, ORDER) == missing
