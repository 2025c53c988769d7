"""Subnet pools: prefixes from which subnets without a CIDR of their own are allocated."""

from __future__ import annotations

import ipaddress
import itertools

from neutron_lib import exceptions

from hotplate.cloud.neutron.allocation import Network, first_free_subnet
from hotplate.cloud.neutron.records import Values
from hotplate.cloud.neutron.resources import Resources

PREFIXES = 64
"""Maximum number of prefixes in a pool."""
LONGEST = {4: 32, 6: 128}
SHORTEST = {4: 8, 6: 64}
"""Neutron's defaults of ``max_prefixlen`` and ``min_prefixlen``, by the IP version."""


class SubnetPools(Resources):
    """The subnet pools of one cloud."""

    NAME = "subnetpools"
    MISSING = (exceptions.SubnetPoolNotFound, "subnetpool_id")

    def create(self, values: Values) -> Values:
        """Create a pool.

        :raises neutron_lib.exceptions.NeutronException: when its prefixes or lengths do not fit.
        """
        return super().create({"default_quota": None, **values, **_checked(values)})

    def change(self, record: Values, changes: Values) -> Values:
        """Change a pool; its prefixes can only grow.

        :raises neutron_lib.exceptions.NeutronException: as :meth:`create`.
        """
        checked = _checked({**record, **changes})
        wider = [ipaddress.ip_network(each) for each in checked["prefixes"]]
        for each in record["prefixes"]:
            old = ipaddress.ip_network(each)
            if not any(_within(old, new) for new in wider):
                raise exceptions.IllegalSubnetPoolPrefixUpdate(
                    msg="Existing prefixes must be a subset of the new prefixes"
                )
        return super().change(record, {**changes, **checked})

    def delete(self, record: Values) -> None:
        """Remove a pool.

        :raises neutron_lib.exceptions.SubnetPoolInUse: when a subnet was allocated from it.
        """
        if self._used(record["id"]):
            raise exceptions.SubnetPoolInUse(
                subnet_pool_id=record["id"], reason="Subnet pool has existing allocations"
            )
        super().delete(record)

    def cut(self, record: Values, values: Values) -> Network:
        """Return the CIDR of a new subnet: the requested one, or the first that is free.

        :param values: the request for the subnet (``cidr``, ``prefixlen``).
        :raises neutron_lib.exceptions.NeutronException: when the pool does not have it.
        """
        prefixes = [ipaddress.ip_network(each) for each in record["prefixes"]]
        used = self._used(record["id"])
        if values.get("cidr"):
            asked = ipaddress.ip_network(values["cidr"], strict=False)
            if not any(_within(asked, each) for each in prefixes) or any(
                each.overlaps(asked) for each in used
            ):
                raise exceptions.SubnetAllocationError(
                    reason=f"Cannot allocate requested subnet {asked} from the subnet pool"
                )
            return asked
        length = values.get("prefixlen")
        length = record["default_prefixlen"] if length is None else int(length)
        _check_length(record, length)
        free = first_free_subnet(prefixes, length, used)
        if free is None:
            raise exceptions.SubnetAllocationError(
                reason="Insufficient prefix space to allocate subnet size /" + str(length)
            )
        return free

    def _used(self, pool_id: str) -> list[Network]:
        subnets = self.records.where("subnets", subnetpool_id=pool_id)
        return [ipaddress.ip_network(each["cidr"]) for each in subnets]


def _within(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def _check_length(record: Values, length: int) -> None:
    if length < record["min_prefixlen"]:
        raise exceptions.MinPrefixSubnetAllocationError(
            prefixlen=length, min_prefixlen=record["min_prefixlen"]
        )
    if length > record["max_prefixlen"]:
        raise exceptions.MaxPrefixSubnetAllocationError(
            prefixlen=length, max_prefixlen=record["max_prefixlen"]
        )


def _checked(values: Values) -> Values:
    """Return the values that follow from the requested prefixes and lengths."""
    prefixes = [ipaddress.ip_network(each, strict=False) for each in values.get("prefixes") or []]
    if not prefixes or len(prefixes) > PREFIXES:
        raise exceptions.EmptySubnetPoolPrefixList()
    versions = {each.version for each in prefixes}
    if len(versions) > 1:
        raise exceptions.PrefixVersionMismatch()
    version = versions.pop()
    shortest = values.get("min_prefixlen")
    shortest = SHORTEST[version] if shortest is None else int(shortest)
    longest = values.get("max_prefixlen")
    longest = LONGEST[version] if longest is None else int(longest)
    default = values.get("default_prefixlen")
    default = shortest if default is None else int(default)
    bounds = (("min_prefixlen", shortest), ("default_prefixlen", default))
    for (low, least), (high, most) in itertools.pairwise((*bounds, ("max_prefixlen", longest))):
        if least > most or most > LONGEST[version]:
            raise exceptions.IllegalSubnetPoolPrefixBounds(
                prefix_type=low, prefixlen=least, base_prefix_type=high, base_prefixlen=most
            )
    return {
        "prefixes": [str(each) for each in ipaddress.collapse_addresses(prefixes)],  # type: ignore[type-var]
        "ip_version": version,
        "min_prefixlen": shortest,
        "max_prefixlen": longest,
        "default_prefixlen": default,
    }
