"""Which sixth of the long lane a test is in, each commit has the next one; and what begins first.

Tests that need an image of their own are together, so that a slice builds few, and each slice takes
about as much of the processors. What is not listed is where its name's hash falls.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from xdist.scheduler import LoadScopeScheduling

from hotplate.shard import Shard

SLICES: tuple[tuple[str, ...], ...] = (
    (
        "tests/booted/test_by_others.py::test_heats_own_scenario_of_a_signal",
        "tests/booted/test_by_others.py::test_heats_own_scenario_of_cfn_init",
        "tests/booted/test_containers.py::test_containers_run_with_docker",
        "tests/booted/test_end_to_end.py",
        "tests/booted/test_firmware.py",
        "tests/booted/test_hostile_guest.py",
        "tests/booted/test_inspected_images.py::test_other_kinds_have_no_finding[disk-uefi",
        "tests/booted/test_kill.py::test_ten",
        "tests/booted/test_many.py",
        "tests/booted/test_networks.py",
        "tests/booted/test_planted_in_images.py",
        "tests/booted/test_routed_servers.py",
        "tests/booted/test_two_servers.py",
        "tests/elements/test_reproducible.py::test_two_builds_have_the_same_files[--release t",
    ),
    (
        "tests/booted/test_all_hooks.py",
        "tests/booted/test_by_others.py::test_an_element",
        "tests/booted/test_by_others.py::test_elements",
        "tests/booted/test_by_others.py::test_heats_own",
        "tests/booted/test_expected.py",
        "tests/booted/test_guest.py",
        "tests/booted/test_os_cloud.py::test_the_plug_in",
        "tests/booted/test_seeds.py",
        "tests/booted/test_up.py",
    ),
    (
        "tests/booted/test_by_others.py::test_an_example",
        "tests/booted/test_by_others.py::test_documented",
        "tests/booted/test_by_others.py::test_examples",
        "tests/booted/test_container_file.py",
        "tests/booted/test_containers.py::test_containers_run_with_docker[trixie]",
        "tests/booted/test_containers.py::test_containers_run_with_podman",
        "tests/booted/test_documented_examples.py",
        "tests/booted/test_five_servers.py",
        "tests/booted/test_planted_in_images.py::test_planted_in_an_image[o",
        "tests/elements/test_image_contents.py",
        "tests/elements/test_reproducible.py",
        "tests/testbed/test_xdist.py",
    ),
    (
        "tests/booted/test_cluster.py",
        "tests/booted/test_inspected_images.py::test_other_kinds_have_no_finding[partition-venv",
        "tests/booted/test_new_hook.py",
        "tests/booted/test_os_cloud.py",
        "tests/booted/test_planted_in_images.py::test_planted_in_an_image[c",
        "tests/booted/test_planted_with_upstreams_agent.py",
        "tests/booted/test_plugin_booted.py",
        "tests/booted/test_recipes.py::test_gitlab",
        "tests/booted/test_transports.py",
        "tests/booted/test_upstreams_agent.py",
        "tests/cli/test_wheel.py",
        "tests/cluster/test_object_stores.py",
    ),
    (
        "tests/booted/test_crash_matrix.py",
        "tests/booted/test_plain_dib.py",
        "tests/booted/test_planted_boot_faults.py",
        "tests/booted/test_planted_faults.py",
        "tests/booted/test_planted_in_guests.py",
        "tests/booted/test_recipes.py::test_github",
        "tests/booted/test_tutorials.py",
        "tests/elements/test_reproducible.py::test_two_builds_have_the_same_files[--release b",
    ),
    (
        "tests/booted/test_booted_faults.py",
        "tests/booted/test_datasources.py",
        "tests/booted/test_hook_check.py",
        "tests/booted/test_inspected_images.py",
        "tests/booted/test_kill.py",
        "tests/booted/test_many.py::test_releases",
        "tests/booted/test_planted_in_images.py::test_planted_in_an_image[a",
        "tests/booted/test_recipes.py::test_zuul",
        "tests/cli/test_cluster_losses.py",
    ),
)
"""The beginnings of the tests' names; the longest that fits says where a test is."""

LONGEST = (
    "tests/booted/test_datasources.py",
    "tests/booted/test_tutorials.py",
    "tests/booted/test_crash_matrix.py",
    "tests/booted/test_plain_dib.py::test_nothing",
    "tests/booted/test_kill.py::test_twenty",
    "tests/booted/test_planted_in_images.py::test_planted_in_an_image[unit-that-hangs",
    "tests/booted/test_recipes.py",
    "tests/booted/test_os_cloud.py",
    "tests/booted/test_many.py",
    "tests/booted/test_five_servers.py",
    "tests/booted/test_containers.py",
    "tests/booted/test_documented_examples.py::test_every_example_passes",
    "tests/booted/test_end_to_end.py",
    "tests/booted/test_cluster.py",
    "tests/elements/test_reproducible.py",
)
"""The longest tests, longest first, by the beginnings of their names: two minutes beside others."""

TOGETHER = (
    "tests/booted/test_routed_servers.py",
    "tests/booted/test_networks.py",
    "tests/booted/test_hostile_guest.py",
    "tests/booted/test_guest.py",
    "tests/booted/test_datasources.py",
    "tests/booted/test_container_file.py",
    "tests/booted/test_planted_with_upstreams_agent.py",
)
"""Files whose tests share what takes a minute to set up: each worker would do it for itself."""


def group(name: str) -> str:
    """Return the group for ``--shard`` that a test is in, "" for one that is not listed.

    :param name: the test's, as seen from the repository.
    """
    fitting = [
        (len(beginning), part)
        for part, beginnings in enumerate(SLICES, 1)
        for beginning in beginnings
        if name.startswith(beginning)
    ]
    return group_of(max(fitting)[1]) if fitting else ""


def group_of(part: int) -> str:
    """Return a name whose hash is in that part of as many as there are slices."""
    shard = Shard(part, len(SLICES))
    names = (f"slice {part}, name {number}" for number in itertools.count())
    return next(name for name in names if shard.has(name))


def in_order(names: Sequence[str]) -> list[str]:
    """Return the names with those first that take longest: begun at the end, one would run alone.

    Then those come that stay together, which are begun at once too.

    :param names: of tests, as seen from the repository.
    """
    return sorted(names, key=_rank)


class Scheduler(LoadScopeScheduling):
    """Gives a worker that runs out the next test, or all of a file whose tests stay together.

    With pytest-xdist's ``--dist loadscope --no-loadscope-reorder``.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((file for file in TOGETHER if nodeid.startswith(f"{file}::")), nodeid)


def _rank(name: str) -> int:
    beginnings = (*LONGEST, *TOGETHER)
    fitting = (rank for rank, each in enumerate(beginnings) if name.startswith(each))
    return next(fitting, len(beginnings))
