"""Attributes that an ordinary user may set, change and see: the defaults of Neutron's policies.

The rules are those of ``neutron/conf/policies``, and the form of a refusal is that of
``neutron/policy.py``.  Everything that is not in the tables is the owner's to change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from hotplate.cloud.http.rest import HttpError
from hotplate.cloud.keystone.identity import Grant
from hotplate.cloud.neutron.attributes import UNSET, ResourceKind
from hotplate.cloud.neutron.errors import refusal
from hotplate.cloud.neutron.records import Values

_PROVIDER = ("provider:network_type", "provider:physical_network", "provider:segmentation_id")
_BINDING = ("binding:host_id", "binding:profile")
_ROUTER = ("distributed", "ha")
#: Attributes that only an administrator sets, by the singular of the kind.
_SET_BY_ADMIN: Mapping[str, Collection[str]] = {
    "network": ("shared", "router:external", "is_default", *_PROVIDER),
    "subnet": ("segment_id", "service_types"),
    "subnetpool": ("shared", "is_default"),
    "port": _BINDING,
    "router": (
        *_ROUTER,
        "external_gateway_info:enable_snat",
        "external_gateway_info:external_fixed_ips",
    ),
    "floatingip": ("floating_ip_address",),
}
#: Attributes that only an administrator sees.
_SEEN_BY_ADMIN: Mapping[str, Collection[str]] = {
    "network": _PROVIDER,
    "subnet": ("segment_id",),
    "port": (*_BINDING, "binding:vif_type", "binding:vif_details"),
    "router": _ROUTER,
}
#: Attributes of a port that the owner of its network sets; addresses also on a shared one.
_SET_BY_NETWORK_OWNER = ("mac_address", "port_security_enabled", "allowed_address_pairs")
#: Attributes to which policies apply, beside those that neutron-lib marks (``enforce_policy``).
_MARKED: Mapping[str, Collection[str]] = {
    "subnet": ("segment_id", "service_types"),
    "port": ("allowed_address_pairs", "binding:vnic_type"),
    "router": _ROUTER,
}


def seen(kind: ResourceKind, record: Values) -> Values:
    """Return a resource without the attributes of administrators, of whom there is none."""
    hidden = _SEEN_BY_ADMIN.get(kind.single, ())
    return {name: value for name, value in record.items() if name not in hidden}


def check_create(
    kind: ResourceKind, values: Values, caller: Grant, network: Values | None = None
) -> None:
    """Refuse to create a resource with attributes that are not the caller's to set.

    :param values: as checked by :meth:`ResourceKind.new`.
    :param network: the network of a port or subnet; None when there is none.
    :raises HttpError: 403.
    """
    given = [
        name
        for name in _marked(kind)
        if name in values
        and values[name] is not UNSET
        and values[name] != kind.map[name].get("default", UNSET)
    ]
    _check("create", kind, {name: values[name] for name in given}, caller, network)


def check_change(
    kind: ResourceKind, changes: Values, caller: Grant, record: Values, network: Values | None
) -> None:
    """Refuse changes that are not the caller's to make.

    :raises HttpError: 403.
    """
    given = {name: changes[name] for name in _marked(kind) if name in changes}
    if kind.name == "networks":
        network = record
    _check("update", kind, given, caller, network)
    check_owner("update", kind, record, caller, network)


def check_owner(
    verb: str, kind: ResourceKind, record: Values, caller: Grant, network: Values | None = None
) -> None:
    """Refuse to change or remove a resource that the caller sees, and does not own.

    :param verb: ``update`` or ``delete``.
    :raises HttpError: 403.
    """
    owners = {record["project_id"], network["project_id"] if network else None}
    if caller.project not in owners:
        raise disallowed(f"rule:{verb}_{kind.single}")


def _marked(kind: ResourceKind) -> Iterator[str]:
    more = _MARKED.get(kind.single, ())
    return (name for name, spec in kind.map.items() if spec.get("enforce_policy") or name in more)


def _check(
    verb: str, kind: ResourceKind, given: Values, caller: Grant, network: Values | None
) -> None:
    action = f"{verb}_{kind.single}"
    foreign = network is not None and network["project_id"] != caller.project
    forbidden = set(_SET_BY_ADMIN.get(kind.single, ()))
    if kind.name == "ports":
        if foreign:
            forbidden |= set(_SET_BY_NETWORK_OWNER)
        if foreign and network is not None and not network["shared"]:
            forbidden.add("fixed_ips")
        if foreign and str(given.get("device_owner", "")).startswith("network:"):
            forbidden.add("device_owner")
        # A new port on one's own network may have any MAC; later only an administrator changes it.
        if verb == "update":
            forbidden.add("mac_address")
    refused = kind.name == "subnets" and foreign
    rule = f"rule:{action}"
    for name, value in given.items():
        below = [f"{name}:{part}" for part in _parts(value)]
        refused = refused or not forbidden.isdisjoint({name, *below})
        rule = _both(rule, _rule(action, name, below))
    if refused:
        raise disallowed(rule)
    # Neutron's own check, by which an external network is no place for a user's ports.
    if verb == "create" and kind.name == "ports" and foreign and network and not network["shared"]:
        raise refusal(
            403,
            "HTTPForbidden",
            f"Tenant {caller.project} not allowed to create port on this network",
        )


def _parts(value: object) -> Iterator[str]:
    """Return the names of the sub-attributes of a value, a mapping or a list of such."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict):
            yield from each


def _rule(action: str, name: str, below: Iterable[str]) -> str:
    """Return the rule of an attribute, as oslo.policy prints it, with its sub-attributes."""
    inner = " and ".join(f"rule:{action}:{each}" for each in below)
    own = f"rule:{action}:{name}"
    return _both(own, f"({inner})") if inner else own


def _both(one: str, other: str) -> str:
    return f"({one} and {other})"


def disallowed(rule: str) -> HttpError:
    """Return Neutron's refusal by a rule, such as ``rule:get_quota``."""
    return refusal(403, "PolicyNotAuthorized", f"{rule} is disallowed by policy")
