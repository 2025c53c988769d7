"""The specs that Nova passes to a compute, and their storage across a restart."""

from __future__ import annotations

import json

from hotplate.cloud.nova.compute import PortAddress, ServerPort, ServerSpec

PORT = ServerPort(
    id="8f2a",
    network_id="77aa",
    network_name="private",
    mac="fa:16:3e:00:00:05",
    addresses=(
        PortAddress(
            address="10.0.0.5",
            subnet_id="91bc",
            cidr="10.0.0.0/24",
            gateway="10.0.0.1",
            host_routes=(("192.168.7.0/24", "10.0.0.9"),),
            name_servers=("10.0.0.3",),
            dhcp_server="10.0.0.254",
        ),
        PortAddress("10.1.0.5", "a001", "10.1.0.0/24", enable_dhcp=False),
    ),
    names=("web",),
    mtu=1400,
)


def test_server_with_ports_survives_json() -> None:
    spec = ServerSpec(id="1", name="web", user_data=b"\x00\xff", ports=(PORT,))
    kept = json.loads(json.dumps(spec.to_json()))
    assert ServerSpec.from_json(kept) == spec


def test_spec_stored_without_ports_is_read() -> None:
    kept = ServerSpec(id="1", name="web").to_json()
    del kept["ports"]
    assert ServerSpec.from_json(kept).ports == ()
