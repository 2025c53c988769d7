"""A real Heat and the rest of a cloud around it, in this process.

Knows no QEMU: whoever makes a :class:`Cloud` gives it a :class:`Compute` that boots servers.
"""

from hotplate.cloud.addresses import GUEST_ADDRESS, PORTS
from hotplate.cloud.cloud import Cloud, StoodIn
from hotplate.cloud.compute import Compute, ServerSpec
from hotplate.cloud.faults import KINDS as FAULT_KINDS
from hotplate.cloud.faults import Fault
from hotplate.cloud.options import CloudOptions

__all__ = [
    "FAULT_KINDS",
    "GUEST_ADDRESS",
    "PORTS",
    "Cloud",
    "CloudOptions",
    "Compute",
    "Fault",
    "ServerSpec",
    "StoodIn",
]
