"""The attributes of each kind of resource, and the checks of requests against them.

The attributes, their defaults and their checks come from neutron-lib, on which Neutron itself is
built; those defined in Neutron only (security groups, tags) are described here in the same form
(https://docs.openstack.org/neutron-lib/latest/contributor/api_attributes.html).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

from neutron_lib import constants, exceptions
from neutron_lib.api import attributes, converters
from neutron_lib.exceptions import allowedaddresspairs as allowedaddresspairs_exceptions
from webob import exc

from hotplate.cloud.neutron.errors import named_error
from hotplate.cloud.neutron.records import Values

MAX_TEXT = 255
Spec = dict[str, object]
AttributeMap = dict[str, Spec]

UNSET = constants.ATTR_NOT_SPECIFIED


def _given(default: object = UNSET, *, change: bool = True, **more: object) -> Spec:
    """Return an attribute that a request may set, and also change if ``change``."""
    return {
        "allow_post": True,
        "allow_put": change,
        "default": default,
        "is_visible": True,
        "is_filter": True,
        "is_sort_key": True,
        **more,
    }


def _shown() -> Spec:
    """Return an attribute that only Neutron sets."""
    return {
        "allow_post": False,
        "allow_put": False,
        "is_visible": True,
        "is_filter": True,
        "is_sort_key": True,
    }


_TEXT = {"type:string": MAX_TEXT}
_STANDARD: AttributeMap = {
    "description": _given("", validate=_TEXT),
    "created_at": _shown(),
    "updated_at": _shown(),
    "revision_number": _shown(),
    "tags": _shown(),
    "project_id": _given(change=False, validate=_TEXT),
}


def protocol(value: object) -> str | None:
    """Return a rule's protocol as Neutron stores it: a name, a number as text, or None for any."""
    if value is None or value in ("", "any", "-1", -1):
        return None
    text = str(value).lower()
    if text in constants.IP_PROTOCOL_MAP or (text.isascii() and text.isdigit() and int(text) < 256):
        return text
    raise named_error(
        "SecurityGroupRuleInvalidProtocol",
        protocol=value,
        values=", ".join(sorted(constants.IP_PROTOCOL_MAP)),
    )


def port_number(value: object) -> int | None:
    """Return a rule's port (or ICMP type), from 0 to 65535."""
    if value is None:
        return None
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= 65535):
        raise named_error("SecurityGroupInvalidPortValue", port=value)
    return int(text)


def ethertype(value: object) -> str:
    """Return ``IPv4`` or ``IPv6``, in that spelling."""
    for name in ("IPv4", "IPv6"):
        if str(value).lower() == name.lower():
            return name
    raise named_error(
        "SecurityGroupRuleInvalidEtherType", ethertype=value, values="['IPv4', 'IPv6']"
    )


def address_pairs(value: object) -> list[dict[str, str]]:
    """Return additional addresses, with optional MACs, that a port may send from."""
    pairs = []
    for each in value if isinstance(value, list) else [] if value is None else [None]:
        if not isinstance(each, dict) or not each.get("ip_address"):
            raise allowedaddresspairs_exceptions.AllowedAddressPairsMissingIP
        pair = {"ip_address": str(each["ip_address"])}
        try:
            ipaddress.ip_network(pair["ip_address"])
        except ValueError:
            raise exc.HTTPBadRequest(
                f"Invalid input for allowed_address_pairs. Reason: '{pair['ip_address']}' is not "
                "a valid IP address or subnet."
            ) from None
        if each.get("mac_address"):
            pair["mac_address"] = str(each["mac_address"])
        pairs.append(pair)
    return pairs


def prefix(value: object) -> str | None:
    """Return a CIDR; a single address becomes a network of its own."""
    if not value:
        return None
    try:
        return str(ipaddress.ip_network(str(value), strict=False))
    except ValueError:
        raise exceptions.InvalidCIDR(input=value) from None


def _refused(name: str, why: str, *, default: object = None) -> Spec:
    """Return an attribute of which only the default is accepted, because no guest would notice it.

    :param why: a sentence for the refusal, which names nothing.
    """

    def convert(value: object) -> object:
        # Clients send a boolean as text, too.
        if value is None or str(value).lower() == str(default).lower():
            return default
        raise exc.HTTPBadRequest(f'"{name}" cannot be "{value}" in hotplate: {why}')

    return _given(default, convert_to=convert)


_QOS = _refused("qos_policy_id", "no bandwidth is limited, and no packet marked")
_GROUP: AttributeMap = {
    "id": _shown(),
    "name": _given("", validate=_TEXT),
    "tenant_id": _given(change=False, validate=_TEXT),
    "stateful": _given(True, convert_to=converters.convert_to_boolean),
    "security_group_rules": {**_shown(), "is_filter": False},
    "shared": _shown(),
}
_RULE: AttributeMap = {
    "id": _shown(),
    "tenant_id": _given(change=False, validate=_TEXT),
    # Not "type:uuid": Neutron looks for a group of any id.
    "security_group_id": _given(change=False, validate={"type:string": 36}),
    "remote_group_id": _given(None, change=False, validate={"type:string_or_none": 36}),
    "remote_address_group_id": _given(None, change=False, validate={"type:values": [None]}),
    "direction": _given(change=False, validate={"type:values": ["ingress", "egress"]}),
    "protocol": _given(None, change=False, convert_to=protocol),
    "port_range_min": _given(None, change=False, convert_to=port_number),
    "port_range_max": _given(None, change=False, convert_to=port_number),
    "ethertype": _given("IPv4", change=False, convert_to=ethertype),
    "remote_ip_prefix": _given(None, change=False, convert_to=prefix),
    "normalized_cidr": _shown(),
    "belongs_to_default_sg": _shown(),
}
# In neutron-lib an attribute without a default must be given.
for _name in ("security_group_id", "direction"):
    del _RULE[_name]["default"]

# A host name with its domain, too (Nova from 2.94 on): neutron-lib's FQDN_FIELD_SIZE.
_HOST_NAME = _given("", validate={"type:string_or_none": 255})
# Templates name these for services that do not exist here: stored and shown.
_ELSEWHERE = _given(None, validate={"type:string_or_none": MAX_TEXT})
_ZONE_HINTS = _given([], change=False, validate={"type:list_of_unique_strings": None})
_OWN: dict[str, AttributeMap] = {
    "networks": {
        "availability_zone_hints": _ZONE_HINTS,
        "qos_policy_id": _QOS,
        "availability_zones": _shown(),
        "dns_domain": _given("", validate=_TEXT),
        "ipv4_address_scope": _shown(),
        "ipv6_address_scope": _shown(),
    },
    "subnetpools": {"address_scope_id": _ELSEWHERE},
    "subnets": {
        "segment_id": _ELSEWHERE,
        "service_types": _given([], validate={"type:list_of_unique_strings": None}),
        "dns_publish_fixed_ip": _given(False, convert_to=converters.convert_to_boolean),
    },
    "ports": {
        "security_groups": _given(
            convert_to=converters.convert_none_to_empty_list, validate={"type:uuid_list": None}
        ),
        # neutron-lib's own check of these reads Neutron's configuration.
        "allowed_address_pairs": _given(convert_to=address_pairs, is_filter=False),
        "dns_name": _HOST_NAME,
        "propagate_uplink_status": _given(True, convert_to=converters.convert_to_boolean),
        "qos_policy_id": _QOS,
        "binding:vnic_type": _refused(
            "binding:vnic_type",
            'a server has virtual interfaces only ("normal"), none of the host\'s hardware',
            default="normal",
        ),
        "dns_assignment": _shown(),
        "ip_allocation": _shown(),
    },
    "routers": {
        "availability_zone_hints": _ZONE_HINTS,
        # Those of administrators, of whom there is none (policy.py).
        "ha": _given(convert_to=converters.convert_to_boolean_if_not_none),
        "distributed": _given(convert_to=converters.convert_to_boolean_if_not_none),
        "availability_zones": _shown(),
        "flavor_id": _given(None, change=False, validate={"type:values": [None]}),
    },
    "floatingips": {
        "dns_name": _HOST_NAME,
        "dns_domain": _given("", validate=_TEXT),
        "qos_policy_id": _QOS,
    },
    "security_groups": _GROUP,
    "security_group_rules": _RULE,
    "trunks": {},
}

#: Modules of neutron-lib's ``api.definitions``: Neutron's core, and the supported extensions.
_CORE = ("network", "subnet", "subnetpool", "port")
_WITH_ATTRIBUTES = (
    *("external_net", "network_mtu", "network_mtu_writable", "provider_net", "port_security"),
    *("portbindings", "allowedaddresspairs", "extra_dhcp_opt", "l3", "l3_ext_gw_mode"),
    *("extraroute", "fip_port_details", "auto_allocated_topology", "trunk", "trunk_details"),
)
_WITHOUT_ATTRIBUTES = (
    *("extraroute_atomic", "filter_validation", "pagination"),
    *("project_id", "quota_check_limit", "sorting", "stateful_security_group"),
)
#: Extensions that neutron-lib does not define: alias -> name.
_NEUTRONS_OWN = {
    "security-group": "security-group",
    "quotas": "Quota management support",
    "quota_details": "Quota details management support",
    "standard-attr-description": "standard-attr-description",
    "standard-attr-tag": "Tag support for resources with standard attribute",
    "standard-attr-timestamp": "Resource timestamps",
    "standard-attr-revisions": "Resource revision numbers",
    "dns-integration": "DNS Integration",
    "subnet-service-types": "Subnet service types",
    "subnet_allocation": "Subnet Allocation",
}


def extensions() -> list[Values]:
    """Return the supported extensions, as ``GET /v2.0/extensions`` lists them."""
    defined = [
        (each.ALIAS, each.NAME, each.DESCRIPTION, each.UPDATED_TIMESTAMP)
        for each in map(_definition, (*_WITH_ATTRIBUTES, *_WITHOUT_ATTRIBUTES))
    ]
    defined += [(alias, name, name, "") for alias, name in _NEUTRONS_OWN.items()]
    return [
        {"alias": alias, "name": name, "description": text, "updated": at, "links": []}
        for alias, name, text, at in defined
    ]


def _definition(module: str) -> ModuleType:
    return import_module(f"neutron_lib.api.definitions.{module}")


@dataclass(frozen=True)
class ResourceKind:
    """A kind of resource.

    :param name: the collection, as in a path but with ``_`` for ``-``: ``security_groups``.
    :param single: the singular, as in a body: ``security_group``.
    :param quota: Neutron's default limit for a project.
    """

    name: str
    single: str
    quota: int
    info: attributes.AttributeInfo = field(repr=False)

    @property
    def map(self) -> Mapping[str, Mapping[str, object]]:
        """The attributes, by name."""
        return self.info.attributes

    @property
    def path(self) -> str:
        """The collection's name in a path."""
        return self.name.replace("_", "-")

    @property
    def visible(self) -> list[str]:
        """The attributes that clients see."""
        return [name for name, spec in self.map.items() if spec.get("is_visible")]

    def new(self, body: Mapping[str, object], project: str) -> Values:
        """Check a request to create a resource, and return its values with defaults.

        An attribute without a value is left out.

        :raises webob.exc.HTTPBadRequest: for an attribute that is unknown or may not be set.
        :raises neutron_lib.exceptions.NeutronException: for a bad value.
        """
        # project_id and tenant_id are two names of one attribute.
        values = dict(attributes.populate_project_info(dict(body)))
        owner = values.get("project_id") or project
        values |= {"project_id": owner, "tenant_id": owner}
        # The order of Neutron's Controller.prepare_request_body().
        self.info.verify_attributes(values)
        self.info.fill_post_defaults(values, exc_cls=exc.HTTPBadRequest)
        self._convert(values)
        return {name: value for name, value in values.items() if value is not UNSET}

    def changes(self, body: Mapping[str, object]) -> Values:
        """Check a request to change a resource, and return the changes.

        :raises webob.exc.HTTPBadRequest: for an attribute that is unknown or may not change.
        :raises neutron_lib.exceptions.NeutronException: for a bad value.
        """
        values = dict(body)
        self.info.verify_attributes(values)
        for name in values:
            if not self.map[name].get("allow_put"):
                raise exc.HTTPBadRequest(f"Cannot update read-only attribute {name}")
        self._convert(values)
        return values

    def _convert(self, values: Values) -> None:
        try:
            self.info.convert_values(values, exc_cls=exc.HTTPBadRequest)
        except (TypeError, AttributeError, LookupError) as error:
            # neutron-lib converts some values before it checks their types.
            raise exc.HTTPBadRequest(
                f"Invalid input: a value has the wrong type: {error}"
            ) from None

    def filter_value(self, name: str, text: str) -> object:
        """Return the value that the filter of a list compares with."""
        convert: Callable[[object], object] | None = self.map[name].get("convert_to")  # type: ignore[assignment]
        if convert is None or name in ("protocol", "remote_ip_prefix"):
            return text
        return convert(text)


#: Collection -> its singular and its default quota (``neutron/conf/quota.py``).
_SINGLE = {
    "networks": ("network", 100),
    # There is no limit (``quota_subnetpool``).
    "subnetpools": ("subnetpool", -1),
    "subnets": ("subnet", 100),
    "ports": ("port", 500),
    "routers": ("router", 10),
    "floatingips": ("floatingip", 50),
    "security_groups": ("security_group", 10),
    "security_group_rules": ("security_group_rule", 100),
    # Unlimited (``[QUOTAS] default_quota``): it has no option of its own.
    "trunks": ("trunk", -1),
}


def _kind(name: str) -> ResourceKind:
    whole: AttributeMap = {}
    for module in (*_CORE, *_WITH_ATTRIBUTES):
        whole |= _definition(module).RESOURCE_ATTRIBUTE_MAP.get(name, {})
    single, quota = _SINGLE[name]
    return ResourceKind(
        name, single, quota, attributes.AttributeInfo({**whole, **_OWN[name], **_STANDARD})
    )


#: All kinds, by name.
KINDS = {name: _kind(name) for name in _SINGLE}


def inside(body: Values, single: str) -> Values:
    """Return the resource in the body of a request.

    :raises webob.exc.HTTPBadRequest: when there is none.
    """
    if single not in body:
        raise exc.HTTPBadRequest(f"Unable to find '{single}' in request body")
    return body_object(body[single])


def body_object(body: object) -> Values:
    """Return a part of a request that has to be an object.

    :raises webob.exc.HTTPBadRequest: when it is none.
    """
    if not isinstance(body, dict):
        raise exc.HTTPBadRequest("Resource body required")
    return body
