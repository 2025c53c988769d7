"""Neutron's refusals: the error classes that neutron-lib lacks, and all errors as HTTP responses.

The name of a class is the ``type`` of the error, by which clients identify it; the names and
the messages are those of Neutron's ``extensions/securitygroup.py`` and ``ipam/exceptions.py``.
"""

from __future__ import annotations

from neutron_lib import exceptions
from neutron_lib.api import faults
from webob import exc

from hotplate.cloud.http.rest import HttpError


class SecurityGroupNotFound(exceptions.NotFound):
    """The group does not exist."""

    message = "Security group %(id)s does not exist"


class SecurityGroupRuleNotFound(exceptions.NotFound):
    """The rule does not exist."""

    message = "Security group rule %(id)s does not exist"


class SecurityGroupInUse(exceptions.InUse):
    """A port or a rule uses the group."""

    message = "Security Group %(id)s in use."


class SecurityGroupCannotRemoveDefault(exceptions.InUse):
    """The default group cannot be removed."""

    message = "Insufficient rights for removing default security group."


class SecurityGroupCannotUpdateDefault(exceptions.InUse):
    """The default group cannot be renamed."""

    message = "Updating default security group not allowed."


class SecurityGroupRuleExists(exceptions.InUse):
    """The group already has that rule."""

    message = "Security group rule already exists. Rule id is %(rule_id)s."


class SecurityGroupInvalidPortRange(exceptions.InvalidInput):
    """The range ends before it begins."""

    message = "For TCP/UDP protocols, port_range_min must be <= port_range_max"


class SecurityGroupInvalidPortValue(exceptions.InvalidInput):
    """The value is not a port."""

    message = "Invalid value for port %(port)s"


class SecurityGroupInvalidIcmpValue(exceptions.InvalidInput):
    """The value is not an ICMP type or code."""

    message = "Invalid value for ICMP %(field)s (%(attr)s) %(value)s. It must be 0 to 255."


class SecurityGroupMissingIcmpType(exceptions.InvalidInput):
    """An ICMP code is given without a type."""

    message = (
        "ICMP code (port-range-max) %(value)s is provided"
        " but ICMP type (port-range-min) is missing."
    )


class SecurityGroupMultipleRemoteEntites(exceptions.InvalidInput):
    """A rule names more than one remote side; the misspelling is Neutron's."""

    message = (
        "Only one of remote_ip_prefix or remote_group_id or "
        "remote_address_group_id may be provided."
    )


class SecurityGroupProtocolRequiredWithPorts(exceptions.InvalidInput):
    """Ports are given without a protocol."""

    message = "Must also specify protocol if port range is given."


class SecurityGroupInvalidProtocolForPort(exceptions.InvalidInput):
    """The protocol has no ports."""

    message = (
        "Ports cannot be specified for protocol %(protocol)s. "
        "Ports are only supported for %(valid_port_protocols)s."
    )


class SecurityGroupRuleInvalidProtocol(exceptions.InvalidInput):
    """The protocol does not exist."""

    message = (
        "Security group rule protocol %(protocol)s not supported. Only protocol values %(values)s "
        "and integer representations [0 to 255] are supported."
    )


class SecurityGroupRuleInvalidEtherType(exceptions.InvalidInput):
    """The ethertype is neither IPv4 nor IPv6."""

    message = (
        "Security group rule for ethertype '%(ethertype)s' not supported. "
        "Allowed values are %(values)s."
    )


class SecurityGroupRuleParameterConflict(exceptions.InvalidInput):
    """The prefix is of the other IP version."""

    message = "Conflicting value ethertype %(ethertype)s for CIDR %(cidr)s"


class IpAddressAlreadyAllocated(exceptions.Conflict):
    """Another port has the address."""

    message = "IP address %(ip)s already allocated in subnet %(subnet_id)s"


def http_error(error: Exception) -> HttpError | None:
    """Return Neutron's answer to a request that failed with ``error``; None for a fault of ours."""
    if isinstance(error, exc.HTTPException):
        return refusal(error.code, type(error).__name__, str(error.detail or error.explanation))
    if isinstance(error, exceptions.SubnetAllocationError):
        # neutron-lib gives it no status, and Neutron answers with that of a fault.
        return refusal(409, type(error).__name__, str(error))
    for kind, answer in faults.FAULT_MAP.items():
        if isinstance(error, kind):
            return refusal(answer.code, type(error).__name__, str(error))
    return None


def refusal(status: int, kind: str, message: str) -> HttpError:
    """Return an error response in Neutron's form."""
    return HttpError(status, message, kind=kind, body=described(kind, message))


def described(kind: str, message: str) -> dict[str, object]:
    """Return the body of an error response."""
    return {"NeutronError": {"type": kind, "message": message, "detail": ""}}
