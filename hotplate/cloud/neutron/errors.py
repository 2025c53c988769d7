"""What Neutron refuses, in its words: the errors that neutron-lib lacks, and all as HTTP has them.

The names of the classes are the ``type`` of an error, by which clients tell them apart; they and
the messages are those of its ``extensions/securitygroup.py`` and ``ipam/exceptions.py``.
"""

from __future__ import annotations

from neutron_lib import exceptions
from neutron_lib.api import faults
from webob import exc

from hotplate.cloud.http.rest import HttpError


class SecurityGroupNotFound(exceptions.NotFound):
    """There is no such group."""

    message = "Security group %(id)s does not exist"


class SecurityGroupRuleNotFound(exceptions.NotFound):
    """There is no such rule."""

    message = "Security group rule %(id)s does not exist"


class SecurityGroupInUse(exceptions.InUse):
    """A port or a rule has the group."""

    message = "Security Group %(id)s in use."


class SecurityGroupCannotRemoveDefault(exceptions.InUse):
    """The default group stays."""

    message = "Insufficient rights for removing default security group."


class SecurityGroupCannotUpdateDefault(exceptions.InUse):
    """The default group keeps its name."""

    message = "Updating default security group not allowed."


class SecurityGroupRuleExists(exceptions.InUse):
    """The group has that rule."""

    message = "Security group rule already exists. Rule id is %(rule_id)s."


class SecurityGroupInvalidPortRange(exceptions.InvalidInput):
    """The range ends before it begins."""

    message = "For TCP/UDP protocols, port_range_min must be <= port_range_max"


class SecurityGroupInvalidPortValue(exceptions.InvalidInput):
    """It is no port."""

    message = "Invalid value for port %(port)s"


class SecurityGroupInvalidIcmpValue(exceptions.InvalidInput):
    """It is no type or code of ICMP."""

    message = "Invalid value for ICMP %(field)s (%(attr)s) %(value)s. It must be 0 to 255."


class SecurityGroupMissingIcmpType(exceptions.InvalidInput):
    """There is a code without a type."""

    message = (
        "ICMP code (port-range-max) %(value)s is provided"
        " but ICMP type (port-range-min) is missing."
    )


class SecurityGroupMultipleRemoteEntites(exceptions.InvalidInput):
    """A rule has one other side; the name is spelled as Neutron spells it."""

    message = (
        "Only one of remote_ip_prefix or remote_group_id or "
        "remote_address_group_id may be provided."
    )


class SecurityGroupProtocolRequiredWithPorts(exceptions.InvalidInput):
    """There are ports without a protocol."""

    message = "Must also specify protocol if port range is given."


class SecurityGroupInvalidProtocolForPort(exceptions.InvalidInput):
    """The protocol has no ports."""

    message = (
        "Ports cannot be specified for protocol %(protocol)s. "
        "Ports are only supported for %(valid_port_protocols)s."
    )


class SecurityGroupRuleInvalidProtocol(exceptions.InvalidInput):
    """There is no such protocol."""

    message = (
        "Security group rule protocol %(protocol)s not supported. Only protocol values %(values)s "
        "and integer representations [0 to 255] are supported."
    )


class SecurityGroupRuleInvalidEtherType(exceptions.InvalidInput):
    """It is neither IPv4 nor IPv6."""

    message = (
        "Security group rule for ethertype '%(ethertype)s' not supported. "
        "Allowed values are %(values)s."
    )


class SecurityGroupRuleParameterConflict(exceptions.InvalidInput):
    """The prefix is of the other version."""

    message = "Conflicting value ethertype %(ethertype)s for CIDR %(cidr)s"


class IpAddressAlreadyAllocated(exceptions.Conflict):
    """Another port has the address."""

    message = "IP address %(ip)s already allocated in subnet %(subnet_id)s"


def http_error(error: Exception) -> HttpError | None:
    """Return how Neutron answers a request that failed with ``error``; None for what is a fault."""
    if isinstance(error, exc.HTTPException):
        return refusal(error.code, type(error).__name__, str(error.detail or error.explanation))
    if isinstance(error, exceptions.SubnetAllocationError):
        # neutron-lib has no status for it, and Neutron's own is that of a fault.
        return refusal(409, type(error).__name__, str(error))
    for kind, answer in faults.FAULT_MAP.items():
        if isinstance(error, kind):
            return refusal(answer.code, type(error).__name__, str(error))
    return None


def refusal(status: int, kind: str, message: str) -> HttpError:
    """Return an answer in Neutron's form."""
    return HttpError(status, message, kind=kind, body=described(kind, message))


def described(kind: str, message: str) -> dict[str, object]:
    """Return the body of an error."""
    return {"NeutronError": {"type": kind, "message": message, "detail": ""}}
