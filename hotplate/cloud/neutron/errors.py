"""Neutron's refusals: the errors that neutron-lib lacks, and all errors as HTTP responses.

The name of an error is its ``type``, by which clients identify it; the names and the messages are
those of Neutron's ``extensions/securitygroup.py``, ``services/trunk/exceptions.py`` and
``ipam/exceptions.py``.
"""

from __future__ import annotations

from neutron_lib import exceptions
from neutron_lib.api import faults
from webob import exc

from hotplate.cloud.http.rest import HttpError


class IpAddressAlreadyAllocated(exceptions.Conflict):
    """Another port has the address."""

    message = "IP address %(ip)s already allocated in subnet %(subnet_id)s"


class AllocationOnAutoAddressSubnet(exceptions.InvalidInput):
    """The hosts of the subnet make their addresses of their MACs."""

    message = (
        "IPv6 address %(ip)s cannot be directly assigned to a port on subnet %(subnet_id)s as the "
        "subnet is configured for automatic addresses"
    )


#: Base class -> name -> message.
_MESSAGES: dict[type[exceptions.NeutronException], dict[str, str]] = {
    exceptions.NotFound: {
        "SecurityGroupNotFound": "Security group %(id)s does not exist",
        "SecurityGroupRuleNotFound": "Security group rule %(id)s does not exist",
        "SubPortNotFound": (
            "SubPort on trunk %(trunk_id)s with parent port %(port_id)s could not be found."
        ),
        "TrunkNotFound": "Trunk %(trunk_id)s could not be found.",
    },
    exceptions.InUse: {
        "DuplicateSubPort": (
            "segmentation_type %(segmentation_type)s and segmentation_id %(segmentation_id)s "
            "already in use on trunk %(trunk_id)s."
        ),
        "ParentPortInUse": (
            "Port %(port_id)s is currently in use and is not eligible for use as a parent port."
        ),
        "PortInUseAsSubPort": "Port %(port_id)s is currently a subport for trunk %(trunk_id)s.",
        "PortInUseAsTrunkParent": (
            "Port %(port_id)s is currently a parent port for trunk %(trunk_id)s."
        ),
        "SecurityGroupInUse": "Security Group %(id)s in use.",
        "SecurityGroupCannotRemoveDefault": (
            "Insufficient rights for removing default security group."
        ),
        "SecurityGroupDefaultAlreadyExists": "Default security group already exists.",
        "SecurityGroupCannotUpdateDefault": "Updating default security group not allowed.",
        "SecurityGroupRuleExists": "Security group rule already exists. Rule id is %(rule_id)s.",
        "TrunkPortInUse": "Port %(port_id)s is in use by another trunk.",
    },
    exceptions.Conflict: {
        "SubPortMtuGreaterThanTrunkPortMtu": (
            "MTU %(port_mtu)s of subport %(port_id)s cannot be greater than MTU %(trunk_mtu)s of "
            "trunk %(trunk_id)s."
        ),
        "TrunkDisabled": "Trunk %(trunk_id)s is currently disabled.",
    },
    exceptions.InvalidInput: {
        "SecurityGroupInvalidPortRange": (
            "For TCP/UDP protocols, port_range_min must be <= port_range_max"
        ),
        "SecurityGroupInvalidPortValue": "Invalid value for port %(port)s",
        "SecurityGroupInvalidIcmpValue": (
            "Invalid value for ICMP %(field)s (%(attr)s) %(value)s. It must be 0 to 255."
        ),
        "SecurityGroupMissingIcmpType": (
            "ICMP code (port-range-max) %(value)s is provided but ICMP type (port-range-min) is "
            "missing."
        ),
        # The misspelling is Neutron's.
        "SecurityGroupMultipleRemoteEntites": (
            "Only one of remote_ip_prefix or remote_group_id or remote_address_group_id may be "
            "provided."
        ),
        "SecurityGroupProtocolRequiredWithPorts": (
            "Must also specify protocol if port range is given."
        ),
        "SecurityGroupInvalidProtocolForPort": (
            "Ports cannot be specified for protocol %(protocol)s. Ports are only supported for "
            "%(valid_port_protocols)s."
        ),
        "SecurityGroupRuleInvalidProtocol": (
            "Security group rule protocol %(protocol)s not supported. Only protocol values "
            "%(values)s and integer representations [0 to 255] are supported."
        ),
        "SecurityGroupRuleInvalidEtherType": (
            "Security group rule for ethertype '%(ethertype)s' not supported. Allowed values are "
            "%(values)s."
        ),
        "SecurityGroupRuleParameterConflict": (
            "Conflicting value ethertype %(ethertype)s for CIDR %(cidr)s"
        ),
    },
}

_CLASSES = {
    name: type(name, (base,), {"message": message})
    for base, messages in _MESSAGES.items()
    for name, message in messages.items()
}


def named_error(name: str, **values: object) -> Exception:
    """Return an error about a security group or a trunk.

    :param name: as in Neutron.
    :param values: those that its message contains.
    """
    error: Exception = _CLASSES[name](**values)
    return error


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
