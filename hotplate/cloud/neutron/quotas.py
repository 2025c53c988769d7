"""Quotas: the limits of a project for each kind of resource."""

from __future__ import annotations

from neutron_lib import exceptions
from webob import exc

from hotplate.cloud.neutron.attributes import KINDS, ResourceKind
from hotplate.cloud.neutron.records import Records, Values

MAX_UNLIMITED = 2000
"""The limit for -1, "unlimited": everything is stored and listed in this process."""


class Quotas:
    """The limits of each project; Neutron's defaults unless others are set."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def default(self) -> dict[str, int]:
        """Return the default limits of a project, by the singular of the kind."""
        return {kind.single: kind.quota for kind in KINDS.values()}

    def of(self, project: str) -> dict[str, int]:
        """Return the limits of a project."""
        record = self._records.get("quotas", f"quota-{project}")
        return {**self.default(), **(record["limits"] if record else {})}

    def details(self, project: str) -> Values:
        """Return the limits of a project and its usage."""
        limits = self.of(project)
        return {
            kind.single: {"limit": limits[kind.single], "used": self._used(kind, project), **_NONE}
            for kind in KINDS.values()
        }

    def all(self) -> list[Values]:
        """Return the projects with limits other than the default."""
        return [
            {**self.of(record["project_id"]), **_owner(record["project_id"])}
            for record in self._records.all("quotas")
        ]

    def change(self, project: str, limits: Values) -> dict[str, int]:
        """Set limits of a project; return all of them.

        :param limits: with ``check_limit``, none may be below the usage (Neutron's extension
            ``quota-check-limit``); with ``force``, as without either, they may.
        :raises webob.exc.HTTPBadRequest: for an invalid limit.
        :raises neutron_lib.exceptions.OverQuota: when the usage is above the limit.
        """
        checked = bool(limits.get("check_limit"))
        limits = {name: value for name, value in limits.items() if name not in _NO_LIMITS}
        for name, value in limits.items():
            if name not in self.default():
                raise exc.HTTPBadRequest(f"Unrecognized attribute(s) '{name}'")
            limits[name] = _limit(name, value)
        if checked:
            self._check_used(project, limits)
        present = self.of(project)
        self.reset(project)
        record = {"id": f"quota-{project}", "project_id": project, "limits": {**present, **limits}}
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
        used = self._used(kind, project)
        if used >= (MAX_UNLIMITED if limit < 0 else min(limit, MAX_UNLIMITED)):
            raise exceptions.OverQuota(overs=[kind.single])

    def _check_used(self, project: str, limits: Values) -> None:
        overs = [
            kind.single
            for kind in KINDS.values()
            if 0 <= limits.get(kind.single, -1) < self._used(kind, project)
        ]
        if overs:
            raise exceptions.OverQuota(overs=overs)

    def _used(self, kind: ResourceKind, project: str) -> int:
        return sum(record["project_id"] == project for record in self._records.all(kind.name))


_NONE = {"reserved": 0}
_NO_LIMITS = ("project_id", "tenant_id", "check_limit", "force")


def _owner(project: str) -> dict[str, str]:
    return {"project_id": project, "tenant_id": project}


def _limit(name: str, value: object) -> int:
    text = str(value)
    if not (text == "-1" or (text.isascii() and text.isdigit() and len(text) < 10)):
        raise exc.HTTPBadRequest(
            f"Invalid input for {name}. Reason: '{value}' is not a number from -1 on."
        )
    return int(text)
