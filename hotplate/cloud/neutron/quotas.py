"""Quotas: the limits of a project for each kind of resource."""

from __future__ import annotations

from neutron_lib import exceptions
from webob import exc

from hotplate.cloud.neutron.attributes import KINDS, ResourceKind
from hotplate.cloud.neutron.records import Records, Values

#: The limit for -1, "unlimited": everything is stored and listed in this process.
MAX_UNLIMITED = 2000


_KINDS = {kind.single: kind for kind in KINDS.values()}
#: The default limits of a project, by the singular of the kind.
DEFAULTS = {**{name: kind.quota for name, kind in _KINDS.items()}, "rbac_policy": 10}
_NO_LIMITS = frozenset({"project_id", "tenant_id", "check_limit", "force"})


class Quotas:
    """The limits of each project; Neutron's defaults unless others are set."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def of(self, project: str) -> dict[str, int]:
        """Return the limits of a project."""
        record = self._records.get("quotas", f"quota-{project}")
        return {**DEFAULTS, **(record["limits"] if record else {})}

    def details(self, project: str) -> Values:
        """Return the limits of a project and its usage."""
        return {
            name: {"limit": limit, "used": self._used(name, project), "reserved": 0}
            for name, limit in self.of(project).items()
        }

    def all(self) -> list[Values]:
        """Return the projects with limits other than the default."""
        projects = [record["project_id"] for record in self._records.all("quotas")]
        return [{**self.of(each), "project_id": each, "tenant_id": each} for each in projects]

    def change(self, project: str, limits: Values) -> dict[str, int]:
        """Set limits of a project; return all of them.

        :param limits: with ``check_limit``, none may be below the usage (Neutron's extension
            ``quota-check-limit``); with ``force``, as without either, they may.
        :raises webob.exc.HTTPBadRequest: for an invalid limit.
        :raises neutron_lib.exceptions.OverQuota: when the usage is above the limit.
        """
        new = {name: _limit(name, limits[name]) for name in limits.keys() - _NO_LIMITS}
        if limits.get("check_limit"):
            used = {name: self._used(name, project) for name in new}
            # A limit of -1 is unlimited.
            if overs := [name for name, limit in new.items() if 0 <= limit < used[name]]:
                raise exceptions.OverQuota(overs=overs)
        present = self.of(project)
        self.reset(project)
        record = {"id": f"quota-{project}", "project_id": project, "limits": {**present, **new}}
        self._records.add("quotas", record)
        return self.of(project)

    def reset(self, project: str) -> None:
        """Reset a project to the default limits."""
        self._records.remove("quotas", f"quota-{project}")

    def check(self, kind: ResourceKind, project: str) -> None:
        """Check that the quota allows one more of a kind.

        :raises neutron_lib.exceptions.OverQuota: when it does not.
        """
        limit = self.of(project)[kind.single]
        used = self._used(kind.single, project)
        if used >= (MAX_UNLIMITED if limit < 0 else min(limit, MAX_UNLIMITED)):
            raise exceptions.OverQuota(overs=[kind.single])

    def _used(self, name: str, project: str) -> int:
        # There are no RBAC policies.
        records = self._records.all(_KINDS[name].name) if name in _KINDS else []
        return sum(record["project_id"] == project for record in records)


def _limit(name: str, value: object) -> int:
    if name not in DEFAULTS:
        raise exc.HTTPBadRequest(f"Unrecognized attribute(s) '{name}'")
    text = str(value)
    if not (text == "-1" or (text.isascii() and text.isdigit() and len(text) < 10)):
        raise exc.HTTPBadRequest(
            f"Invalid input for {name}. Reason: '{value}' is not a number from -1 on."
        )
    return int(text)
