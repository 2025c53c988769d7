"""The users, services and networks of the cloud; runs in its chroot, with its own openstacksdk.

usage: inhabitants.py IP PASSWORD identities|networks|wait
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import openstack

IP, PASSWORD, PART = sys.argv[1:]
NETWORK = IP.rpartition(".")[0]
PRIVATE = "10.11.0.0/24"
SERVICES = {
    "glance": ("image", f"http://{IP}:9292"),
    "placement": ("placement", f"http://{IP}:8778"),
    "nova": ("compute", f"http://{IP}:8774/v2.1"),
    "neutron": ("network", f"http://{IP}:9696"),
    "heat": ("orchestration", f"http://{IP}:8004/v1/%(tenant_id)s"),
    "heat-cfn": ("cloudformation", f"http://{IP}:8000/v1"),
}
#: Seconds for the answer to one request, also of a service that is just loading itself.
TIMEOUT = 120
#: Three services of Nova, four agents of Neutron.
REPORTS = 7
#: Name, MiB, processors, GiB.
FLAVORS = (("m1.tiny", 512, 1, 1), ("m1.small", 1024, 1, 5), ("m1.large", 8192, 4, 80))


def connect(user: str) -> Any:
    """Return a connection of a user to the project of the same name."""
    return openstack.connect(
        auth_url=f"http://{IP}:5000/v3",
        username=user,
        password=PASSWORD,
        project_name=user,
        user_domain_id="default",
        project_domain_id="default",
        region_name="RegionOne",
        # A service that does not answer fails the start, which would wait for it forever.
        api_timeout=TIMEOUT,
    )


def identities() -> None:
    """Make the services with their users, Heat's domain, and the ordinary user ``demo``."""
    keystone = connect("admin").identity
    for role in ("heat_stack_owner", "heat_stack_user"):
        keystone.create_role(name=role)
    roles = {role.name: role for role in keystone.roles()}

    def user(name: str, project: Any, *names: str) -> None:
        made = keystone.create_user(name=name, password=PASSWORD, domain_id="default")
        for role in names:
            if role in roles:  # Zed's Keystone makes no role "service".
                keystone.assign_project_role_to_user(project, made, roles[role])

    services = keystone.create_project(name="service", domain_id="default")
    for name, (kind, url) in SERVICES.items():
        service = keystone.create_service(name=name, type=kind)
        for interface in ("public", "internal", "admin"):
            keystone.create_endpoint(
                service_id=service.id, interface=interface, url=url, region_id="RegionOne"
            )
        if name != "heat-cfn":
            user(name, services, "admin", "service")
    demo = keystone.create_project(name="demo", domain_id="default")
    user("demo", demo, "member", "heat_stack_owner")
    heat = keystone.create_domain(name="heat")
    boss = keystone.create_user(name="heat_domain_admin", password=PASSWORD, domain_id=heat.id)
    keystone.assign_domain_role_to_user(heat, boss, roles["admin"])


def networks() -> None:
    """Make the flavors, the external network, and the network and the router of ``demo``."""
    admin, demo = connect("admin"), connect("demo")
    for name, ram, vcpus, disk in FLAVORS:
        admin.compute.create_flavor(name=name, ram=ram, vcpus=vcpus, disk=disk)
    public = admin.network.create_network(
        name="public",
        is_router_external=True,
        provider_network_type="flat",
        provider_physical_network="ext",
    )
    admin.network.create_subnet(
        name="public-subnet",
        network_id=public.id,
        ip_version=4,
        cidr=f"{NETWORK}.0/24",
        gateway_ip=IP,
        is_dhcp_enabled=False,
        allocation_pools=[{"start": f"{NETWORK}.100", "end": f"{NETWORK}.199"}],
    )
    private = demo.network.create_network(name="private")
    subnet = demo.network.create_subnet(
        name="private-subnet",
        network_id=private.id,
        ip_version=4,
        cidr=PRIVATE,
        dns_nameservers=[IP],
    )
    router = demo.network.create_router(
        name="router", external_gateway_info={"network_id": public.id}
    )
    demo.network.add_interface_to_router(router, subnet_id=subnet.id)
    (group,) = demo.network.security_groups(name="default", project_id=demo.current_project_id)
    for rule in (
        {"protocol": "icmp"},
        {"protocol": "tcp", "port_range_min": 22, "port_range_max": 22},
    ):
        demo.network.create_security_group_rule(
            security_group_id=group.id, direction="ingress", ethertype="IPv4", **rule
        )


def wait() -> None:
    """Wait until the agents and the hypervisor have reported, and the router answers.

    Then the network of ``demo`` is reached through it, also without floating IPs.

    Those of an earlier start are in the databases: a report counts from now on.
    """
    admin = connect("admin")
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    for _ in range(300):
        seen = [str(each.updated_at) for each in admin.compute.services()]
        seen += [str(each.last_heartbeat_at).replace(" ", "T") for each in admin.network.agents()]
        (router,) = admin.network.routers()
        address = router.external_gateway_info["external_fixed_ips"][0]["ip_address"]
        if len(seen) == REPORTS and min(seen) > began and _answers(address):
            subprocess.run(["ip", "route", "replace", PRIVATE, "via", address], check=True)
            return
        time.sleep(1)
    raise SystemExit(f"not all have reported since {began}: {seen}; or {address} does not answer")


def _answers(address: str) -> bool:
    ping = ["ping", "-q", "-c", "1", "-W", "1", address]
    return subprocess.run(ping, stdout=subprocess.DEVNULL).returncode == 0


{"identities": identities, "networks": networks, "wait": wait}[PART]()
