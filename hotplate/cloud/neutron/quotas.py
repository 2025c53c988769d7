"""Quotas: the limits of a project for each kind of resource."""

from __future__ import annotations

from neutron_lib import exceptions

from hotplate.cloud.neutron.attributes import KINDS, ResourceKind
from hotplate.cloud.neutron.records import Records, Values

#: The limit for -1, "unlimited": everything is stored and listed in this process.
MAX_UNLIMITED = 2000


_KINDS = {kind.single: kind for kind in KINDS.values()}
#: The default limits of a project, by the singular of the kind.
DEFAULTS = {**{name: kind.quota for name, kind in _KINDS.items()}, "rbac_policy": 10}


class Quotas:
    """The limits of each project, which are Neutron's defaults."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def details(self, project: str) -> Values:
        """Return the limits of a project and its usage."""
        return {
            name: {"limit": limit, "used": self._used(name, project), "reserved": 0}
            for name, limit in DEFAULTS.items()
        }

    def check(self, kind: ResourceKind, project: str) -> None:
        """Check that the quota allows one more of a kind.

        :raises neutron_lib.exceptions.OverQuota: when it does not.
        """
        limit = DEFAULTS[kind.single]
        if self._used(kind.single, project) >= (MAX_UNLIMITED if limit < 0 else limit):
            raise exceptions.OverQuota(overs=[kind.single])

    def _used(self, name: str, project: str) -> int:
        # There are no RBAC policies.
        records = self._records.all(_KINDS[name].name) if name in _KINDS else []
        return sum(record["project_id"] == project for record in records)
