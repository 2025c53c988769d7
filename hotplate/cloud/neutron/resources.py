"""Base class of all kinds of resources: create, view, change and delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from neutron_lib import exceptions

from hotplate.cloud.neutron.attributes import KINDS, ResourceKind
from hotplate.cloud.neutron.records import Records, Values

DHCP = "network:dhcp"
ROUTER_INTERFACE = "network:router_interface"
ROUTER_GATEWAY = "network:router_gateway"
#: Values of ``device_owner`` of ports that Neutron creates itself.
FLOATING_IP = "network:floatingip"
#: Set in the record of a resource that was created because a template assumes it.
GRANTED = "granted"


class Resources:
    """The resources of one kind.  A kind overrides the methods in which it differs.

    Callers hold a transaction of the records during these methods, of which each that changes
    something raises a :class:`neutron_lib.exceptions.NeutronException` when Neutron refuses it.
    """

    NAME: ClassVar[str]
    #: The error for an id that does not exist, and the field of its message for the id.
    MISSING: ClassVar[tuple[Callable[..., Exception], str]]

    def __init__(self, records: Records) -> None:
        self.records = records

    @property
    def kind(self) -> ResourceKind:
        """The description of the kind."""
        return KINDS[self.NAME]

    def all(self) -> list[Values]:
        """Return all resources, oldest first, as they are stored."""
        return self.records.all(self.NAME)

    def get(self, record_id: str) -> Values:
        """Return the resource with that id.

        :raises neutron_lib.exceptions.NotFound: when there is none.
        """
        record = self.records.get(self.NAME, record_id)
        if record is None:
            raise self.missing(record_id)
        return record

    def missing(self, record_id: str) -> Exception:
        """Return the error for an id that does not exist."""
        error, field = self.MISSING
        return error(**{field: record_id})

    def where(self, **equal: object) -> list[Values]:
        """Return the resources with these values, oldest first."""
        return self.records.where(self.NAME, **equal)

    def network(self, network_id: str) -> Values:
        """Return the network of a request.

        :raises neutron_lib.exceptions.NetworkNotFound: when it does not exist.
        """
        network = self.records.get("networks", network_id)
        if network is None:
            raise exceptions.NetworkNotFound(net_id=network_id)
        return network

    def create(self, values: Values) -> Values:
        """Create a resource from checked values (:meth:`ResourceKind.new`)."""
        return self.records.add(self.NAME, values)

    def change(self, record: Values, changes: Values) -> Values:
        """Change a resource by checked values (:meth:`ResourceKind.changes`)."""
        return self.records.change(self.NAME, record, changes)

    def delete(self, record: Values) -> None:
        """Remove a resource."""
        self.records.remove(self.NAME, record["id"])

    def view(self, record: Values) -> Values:
        """Return a resource as a client sees it."""
        shown = {**record, "tenant_id": record["project_id"]}
        return {name: shown.get(name) for name in self.kind.visible}


def bad(resource: str, text: str) -> Exception:
    """Return Neutron's ``BadRequest``, which names the kind of resource."""
    return exceptions.BadRequest(resource=resource, msg=text)


def invalid(text: str) -> Exception:
    """Return Neutron's ``InvalidInput``."""
    return exceptions.InvalidInput(error_message=text)
