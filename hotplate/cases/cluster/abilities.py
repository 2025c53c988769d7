"""The abilities of a worker and the needs of a case, as resources of Dask.

Dask counts resources: a task runs on a worker that has declared the resources it needs, and only
as many at a time as fit. ``MEMORY`` (MiB) and ``CORES`` are used up; other abilities of a host
(``KVM``, ``ARCH-aarch64``, ``UEFI-x86_64``) are declared in plenty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MEMORY = "MEMORY"
CORES = "CORES"
KVM = "KVM"

PLENTY = 1000.0
"""The declared amount of resources that are not used up; more than a worker has threads."""

Resources = Mapping[str, float]


def arch(name: str) -> str:
    """Return the resource of a host that runs guests of an architecture."""
    return f"ARCH-{name}"


def uefi(name: str) -> str:
    """Return the resource of a host that has UEFI firmware for an architecture."""
    return f"UEFI-{name}"


def missing(needs: Resources, workers: Iterable[Resources]) -> str:
    """Return the needs of a case that no worker meets, in words; "" when one meets all.

    >>> missing({"CORES": 1, "KVM": 1}, [{"CORES": 2}, {"CORES": 4}])
    'none of the 2 workers has KVM'
    >>> missing({"CORES": 1}, [{"CORES": 2}])
    ''
    """
    there = list(workers)
    lacks = [_lacks(needs, each) for each in there]
    if not all(lacks) or not there:
        return "" if there else "there is no worker"
    fewest = min(lacks, key=len)
    names = [f"{need:g} MiB of MEMORY" if name == MEMORY else name for name, need in fewest.items()]
    who = (
        "the only worker does not have"
        if len(there) == 1
        else f"none of the {len(there)} workers has"
    )
    return f"{who} {' and '.join(names)}"


def _lacks(needs: Resources, has: Resources) -> dict[str, float]:
    return {name: need for name, need in needs.items() if has.get(name, 0.0) < need}
