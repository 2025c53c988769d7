"""The resources of workers, and the needs of cases."""

from __future__ import annotations

from hotplate.cases.cluster.abilities import arch, missing, uefi

NEEDS = {"CORES": 1.0, "MEMORY": 1624.0, arch("aarch64"): 1.0, uefi("aarch64"): 1.0}


def test_missing_names_the_lacks_of_the_best_worker():
    poor = {"CORES": 1.0}
    near = {"CORES": 1.0, "MEMORY": 9000.0, arch("aarch64"): 1000.0}
    assert missing(NEEDS, [poor, near]) == "none of the 2 workers has UEFI-aarch64"
    assert missing(NEEDS, [poor, near, {**NEEDS}]) == ""
    small = {**NEEDS, "MEMORY": 1000.0}
    assert missing(NEEDS, [small]) == "the only worker does not have 1624 MiB of MEMORY"
    assert missing(NEEDS, []) == "there is no worker"
