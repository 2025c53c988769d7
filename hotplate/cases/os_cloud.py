"""``hotplate test --os-cloud --clean``: remove the resources of earlier runs."""

from __future__ import annotations

from pathlib import Path

from hotplate.errors import HostError

#: Runs of other hosts that began less than this ago may still be running.
OTHERS_SECONDS = 6 * 3600.0


def clean(name: str, cache: Path) -> None:
    """Remove the resources that earlier runs left in a cloud.

    :param name: of the cloud, in ``clouds.yaml``.
    :param cache: the cache, with the records of this host's runs.
    :raises HotplateError: when the cloud does not answer.
    """
    from hotplate.elsewhere import leftovers
    from hotplate.elsewhere.os_cloud import OsCloud
    from hotplate.events.log import EventLog
    from hotplate.trial.cloud_trial import RUNS

    runs = cache / RUNS
    cloud = OsCloud.open(name, EventLog())
    gone, stays = [], {}
    for each in leftovers.find(cloud):
        if each.run.goes_on(runs):
            stays[each.run] = "it goes on on this host"
        # The lock of another host's run cannot be tried from here, so that only its age counts.
        elif not each.run.is_of_this_host and each.run.age < OTHERS_SECONDS:
            hours = OTHERS_SECONDS / 3600
            stays[each.run] = f"it began on another host less than {hours:.0f} hours ago"
        else:
            gone.append(each)
    for run, why in stays.items():
        print(f"left alone: {run.name}, {why}")
    problems = leftovers.remove(cloud, gone, say=lambda text: print(text, flush=True))
    if problems:
        raise HostError("; ".join(problems))
    if not gone:
        print(f'nothing to take away in the cloud "{name}"')
