"""Security groups and their rules: stored and shown, but not enforced."""

from __future__ import annotations

import ipaddress
from functools import partial

from hotplate.cloud.neutron.attributes import KINDS
from hotplate.cloud.neutron.errors import named_error
from hotplate.cloud.neutron.records import Records, Values
from hotplate.cloud.neutron.resources import Resources

DEFAULT = "default"
# A request may name a protocol or give its number.
WITH_PORTS = ("tcp", "udp", "udplite", "sctp", "dccp", "6", "17", "33", "132", "136")
ICMP = ("icmp", "ipv6-icmp", "icmpv6", "1", "58")


class SecurityGroupRules(Resources):
    """The rules of all groups."""

    NAME = "security_group_rules"
    MISSING = (partial(named_error, "SecurityGroupRuleNotFound"), "id")

    def create(self, values: Values) -> Values:
        """Add a rule to its group, which must not have it already."""
        for group_id in (values["security_group_id"], values["remote_group_id"]):
            if group_id and self.records.get("security_groups", group_id) is None:
                raise named_error("SecurityGroupNotFound", id=group_id)
        _check_remote(values)
        _check_ports(values)
        for rule in self.where(**{name: values[name] for name in _SAME}):
            raise named_error("SecurityGroupRuleExists", rule_id=rule["id"])
        return super().create(values)

    def view(self, record: Values) -> Values:
        """Return a rule with the attributes that follow from it."""
        group = self.records.get("security_groups", record["security_group_id"])
        shown = {
            **record,
            "normalized_cidr": record["remote_ip_prefix"],
            "belongs_to_default_sg": group is not None and group["name"] == DEFAULT,
        }
        return super().view(shown)


class SecurityGroups(Resources):
    """The groups; the default group of a project is created on first access."""

    NAME = "security_groups"
    MISSING = (partial(named_error, "SecurityGroupNotFound"), "id")

    def __init__(self, records: Records, rules: SecurityGroupRules) -> None:
        super().__init__(records)
        self._rules = rules

    def create(self, values: Values) -> Values:
        """Create a group that allows all egress, as Neutron's template of rules does."""
        _check_name(values)
        return self._create(values)

    def _create(self, values: Values, *, default: bool = False) -> Values:
        group = super().create({"shared": False, **values})
        for version in ("IPv4", "IPv6"):
            if default:
                self._add_rule(
                    group, direction="ingress", ethertype=version, remote_group_id=group["id"]
                )
            self._add_rule(group, direction="egress", ethertype=version)
        return group

    def default(self, project: str) -> Values:
        """Return the default group of a project; create it when it is missing."""
        for group in self.where(project_id=project, name=DEFAULT):
            return group
        values = {"name": DEFAULT, "description": "Default security group"}
        return self._create(self.kind.new(values, project), default=True)

    def change(self, record: Values, changes: Values) -> Values:
        """Change a group; the default group cannot be renamed."""
        _check_name(changes)
        if record["name"] == DEFAULT and changes.get("name", DEFAULT) != DEFAULT:
            raise named_error("SecurityGroupCannotUpdateDefault")
        return super().change(record, changes)

    def delete(self, record: Values) -> None:
        """Remove a group that no port uses, with its rules; the default group stays."""
        if record["name"] == DEFAULT:
            raise named_error("SecurityGroupCannotRemoveDefault")
        group_id = record["id"]
        if any(group_id in port["security_groups"] for port in self.records.all("ports")):
            raise named_error("SecurityGroupInUse", id=group_id)
        # Other groups' rules that refer to this one go, too.
        for rule in self._rules.all():
            if group_id in (rule["security_group_id"], rule["remote_group_id"]):
                self._rules.delete(rule)
        super().delete(record)

    def view(self, record: Values) -> Values:
        """Return a group with its rules."""
        rules = self._rules.where(security_group_id=record["id"])
        shown = [self._rules.view(rule) for rule in rules]
        return super().view({**record, "security_group_rules": shown})

    def _add_rule(self, group: Values, **values: object) -> None:
        body = {**values, "security_group_id": group["id"]}
        rule = KINDS["security_group_rules"].new(body, group["project_id"])
        # A request has a default for the description, and Neutron itself gives none.
        self._rules.create({**rule, "description": None})


def _check_name(values: Values) -> None:
    """Leave the name of the default group to it (Neutron's ``_validate_name_not_default``)."""
    if str(values.get("name", "")).lower() == DEFAULT:
        raise named_error("SecurityGroupDefaultAlreadyExists")


#: Attributes in which duplicate rules are equal.
_SAME = (
    "security_group_id",
    "direction",
    "ethertype",
    "protocol",
    "port_range_min",
    "port_range_max",
    "remote_ip_prefix",
    "remote_group_id",
)


def _check_remote(values: Values) -> None:
    cidr = values["remote_ip_prefix"]
    if cidr and values["remote_group_id"]:
        raise named_error("SecurityGroupMultipleRemoteEntites")
    if cidr and f"IPv{ipaddress.ip_network(cidr).version}" != values["ethertype"]:
        raise named_error(
            "SecurityGroupRuleParameterConflict", ethertype=values["ethertype"], cidr=cidr
        )


def _check_ports(values: Values) -> None:
    low, high, protocol = (
        values[name] for name in ("port_range_min", "port_range_max", "protocol")
    )
    if low is None and high is None:
        return
    if protocol is None:
        raise named_error("SecurityGroupProtocolRequiredWithPorts")
    if protocol in ICMP:
        _check_icmp(low, high)
    elif protocol not in WITH_PORTS:
        raise named_error(
            "SecurityGroupInvalidProtocolForPort",
            protocol=protocol,
            valid_port_protocols=", ".join(WITH_PORTS[:5]),
        )
    elif low is None or high is None or low > high:
        raise named_error("SecurityGroupInvalidPortRange")


def _check_icmp(kind: int | None, code: int | None) -> None:
    # A rule for ICMP has its type and code in the fields for ports.
    for attribute, field, value in (
        ("port_range_min", "type", kind),
        ("port_range_max", "code", code),
    ):
        if value is not None and value > 255:
            raise named_error(
                "SecurityGroupInvalidIcmpValue", field=field, attr=attribute, value=value
            )
    if kind is None:
        raise named_error("SecurityGroupMissingIcmpType", value=code)
