"""Trunks: ports that carry the networks of other ports, by VLAN; stored, checked and shown.

The rules and the messages are those of Neutron's ``services/trunk`` (``rules.py``, ``plugin.py``).
"""

from __future__ import annotations

from functools import partial

from neutron_lib import exceptions
from neutron_lib.api.validators import validate_subports
from neutron_lib.services.trunk.constants import TRUNK_SUBPORT_OWNER

from hotplate.cloud.neutron.errors import named_error
from hotplate.cloud.neutron.ports import Ports
from hotplate.cloud.neutron.records import Records, Values
from hotplate.cloud.neutron.resources import Resources, invalid

MAX_VLAN = 4094


class Trunks(Resources):
    """The trunks of one cloud."""

    NAME = "trunks"
    MISSING = (partial(named_error, "TrunkNotFound"), "trunk_id")

    def __init__(self, records: Records, ports: Ports) -> None:
        super().__init__(records)
        self._ports = ports

    def create(self, values: Values) -> Values:
        """Create a trunk on a port, which a server may already use, as with OVN's driver."""
        self._check_free(self._ports.get(values["port_id"])["id"])
        trunk = super().create({**values, "sub_ports": []})
        return self._add(trunk, values["sub_ports"])

    def delete(self, record: Values) -> None:
        """Remove a trunk; its ports stay."""
        _check_enabled(record)
        self._free(record["sub_ports"])
        super().delete(record)

    def view(self, record: Values) -> Values:
        """Return a trunk, which is active while a server has its port."""
        bound = self._ports.get(record["port_id"])["binding:host_id"]
        return super().view({**record, "status": "ACTIVE" if bound else "DOWN"})

    def add_subports(self, record: Values, body: Values) -> Values:
        """Add subports to a trunk; return it as a client sees it."""
        given = _subports(body)
        _check_enabled(record)
        return self.view(self._add(record, given))

    def remove_subports(self, record: Values, body: Values) -> Values:
        """Remove subports from a trunk; return it as a client sees it."""
        _check_enabled(record)
        kept = {each["port_id"]: each for each in record["sub_ports"]}
        for port_id in [each["port_id"] for each in _subports(body)]:
            if port_id not in kept:
                raise named_error("SubPortNotFound", trunk_id=record["id"], port_id=port_id)
            self._free([kept.pop(port_id)])
        changes = {"sub_ports": list(kept.values())}
        return self.view(self.records.change(self.NAME, record, changes))

    def _add(self, trunk: Values, given: list[Values]) -> Values:
        present = trunk["sub_ports"]
        taken = {(each["segmentation_type"], each["segmentation_id"]) for each in present}
        added = [self._subport(trunk, each) for each in given]
        for each in added:
            kind, number = each["segmentation_type"], each["segmentation_id"]
            if (kind, number) in taken:
                raise named_error(
                    "DuplicateSubPort",
                    segmentation_type=kind,
                    segmentation_id=number,
                    trunk_id=trunk["id"],
                )
            owner = {"device_id": trunk["id"], "device_owner": TRUNK_SUBPORT_OWNER}
            self.records.change("ports", self._ports.get(each["port_id"]), owner)
        return self.records.change(self.NAME, trunk, {"sub_ports": present + added})

    def _subport(self, trunk: Values, given: Values) -> Values:
        """Return a subport of a request, after Neutron's checks."""
        port_id = given["port_id"]
        if port_id == trunk["port_id"]:
            raise named_error("ParentPortInUse", port_id=port_id)
        port = self._ports.get(port_id)
        parent = self._ports.get(trunk["port_id"])
        mtu, most = (self.network(each["network_id"])["mtu"] for each in (port, parent))
        if mtu > most:
            raise named_error(
                "SubPortMtuGreaterThanTrunkPortMtu",
                port_id=port_id,
                port_mtu=mtu,
                trunk_id=trunk["port_id"],
                trunk_mtu=most,
            )
        kind, number = given.get("segmentation_type"), given.get("segmentation_id")
        if kind is None or number is None:
            raise invalid(
                f"Invalid subport details '{given}': missing segmentation information. Must "
                "specify both segmentation_id and segmentation_type"
            )
        # "inherit" takes the VLAN of the subport's network, and none has one here.
        if kind != "vlan":
            raise invalid(f"Unknown segmentation_type '{kind}'")
        text = str(number)
        if not (text.isascii() and text.isdigit()):
            raise invalid(f"Invalid subport details: segmentation_id '{number}' is not an integer")
        if not 0 < int(text[:9]) <= MAX_VLAN:
            raise invalid(f"Segmentation ID '{number}' is not in range")
        self._check_free(port_id)
        if port["device_id"]:
            raise exceptions.PortInUse(
                net_id=port["network_id"], port_id=port_id, device_id=port["device_id"]
            )
        return {"port_id": port_id, "segmentation_type": kind, "segmentation_id": int(text)}

    def _check_free(self, port_id: str) -> None:
        """Check that a port belongs to no trunk."""
        for trunk in self.all():
            if port_id == trunk["port_id"]:
                raise named_error("ParentPortInUse", port_id=port_id)
            if any(each["port_id"] == port_id for each in trunk["sub_ports"]):
                raise named_error("TrunkPortInUse", port_id=port_id)

    def _free(self, subports: list[Values]) -> None:
        for each in subports:
            port = self._ports.get(each["port_id"])
            self.records.change("ports", port, {"device_id": "", "device_owner": ""})


def _check_enabled(trunk: Values) -> None:
    if not trunk["admin_state_up"]:
        raise named_error("TrunkDisabled", trunk_id=trunk["id"])


def _subports(body: Values) -> list[Values]:
    """Return the subports of a request, after neutron-lib's check."""
    given: list[Values] = body.get("sub_ports")  # type: ignore[assignment]
    try:
        problem = validate_subports(given)
    except TypeError as error:
        # It puts what a client sends into sets.
        problem = str(error)
    if problem:
        raise invalid(problem)
    return given
