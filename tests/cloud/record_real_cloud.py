"""Record the answers of a real cloud to the calls that clients and guests make.

usage: tools/openstack run -- python tests/cloud/record_real_cloud.py FILE

Asks as the ordinary user of the cloud ``real``, and as a guest of it, and writes JSON: ``packages``
with their versions, and ``answers`` by name, each with ``service``, ``call``, ``status``,
``headers`` and ``body`` (an object where it is JSON, else text).  Ids are replaced by names, the
same by the same; tokens, passwords and signatures are left out.  What it makes it deletes.

The guest is this process: the server's disk is empty, and a veth pair into the bridge of its
network has its address, so that the metadata proxy takes it for the server.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml
from keystoneclient.contrib.ec2.utils import Ec2Signer

NEWEST = {"OpenStack-API-Version": "compute 2.93"}
PACKAGES = ("glance-api", "heat-engine", "keystone", "neutron-server", "nova-api", "placement-api")
#: Headers that say nothing about a cloud, or a secret.
LEFT_OUT = {"date", "server", "connection", "content-length"}
SECRETS = re.compile(
    r'(?<="access": ")[^"]+|(?<="secret": ")[^"]+|(?<="secret_access_key": ")(?:[^"\\]|\\.)+'
    r'|(?<=secret_access_key\\": \\")[^"\\]+|gAAAA[\w=-]+|(?<=Signature=)[^&"\\]+'
    r"|(?<=\"AWSAccessKeyId\": \")[^\"]+|(?<=AWSAccessKeyId=)\w+"
)
IDS = re.compile(
    r"(?<![0-9a-f])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])"
)
TEMPLATE = """
heat_template_version: 2018-08-31
parameters:
  word: {type: string, default: hello, description: a word}
resources:
  config:
    type: OS::Heat::SoftwareConfig
    properties:
      {group: script, config: 'echo $word', inputs: [{name: word}], outputs: [{name: size}]}
  server:
    type: OS::Nova::Server
    properties:
      {image: recording, flavor: m1.tiny, key_name: recording, networks: [{network: private}],
       user_data_format: SOFTWARE_CONFIG, software_config_transport: POLL_SERVER_CFN}
  deployment:
    type: OS::Heat::SoftwareDeployment
    properties: {config: {get_resource: config}, server: {get_resource: server},
                 input_values: {word: {get_param: word}}}
outputs:
  size: {description: a size, value: {get_attr: [deployment, size]}}
"""
BARE = """
heat_template_version: 2018-08-31
resources:
  r: {type: OS::Nova::Server, properties: {image: recording, flavor: m1.tiny}}
"""
#: Paths that are asked for.
OF_NEUTRON = """
subnets ports routers security-groups security-group-rules floatingips agents availability_zones
service-providers trunks address-groups qos/policies rbac-policies subnetpools
network-ip-availabilities flavors
"""
OF_SERVER = """
ips metadata os-interface os-security-groups os-volume_attachments os-instance-actions diagnostics
os-server-password topology tags migrations
"""
OF_STACK = """
/resources /resources/server /resources/deployment /resources/config /resources/nosuch
/resources/deployment/metadata /resources/server/metadata /outputs /outputs/size /events?limit=3
/template /environment /resources?nested_depth=2 /actions /snapshots /files
"""
METADATA = """
/ /openstack /openstack/ /latest /latest/ /2009-04-04/
/nosuch /openstack/nosuch /openstack/latest/nosuch /latest/meta-data/nosuch
/openstack/latest /openstack/latest/ /openstack/latest/meta_data.json
/openstack/latest/network_data.json /openstack/latest/user_data /openstack/latest/password
/openstack/latest/vendor_data.json /openstack/latest/vendor_data2.json
/openstack/latest/content/0000 /openstack/2018-08-27/meta_data.json
/openstack/2012-08-10/meta_data.json /openstack/2012-08-10/ /openstack/2025-04-04/meta_data.json
"""
UNKNOWN = "heat_template_version: 2018-08-31\nresources: {a: {type: No}}"
_STACK = {"stack_name": "recording", "template": TEMPLATE, "timeout_mins": 30, "tags": "a,b"}
#: Bodies of the requests to Heat.
HEAT_REQUESTS: dict[str, dict[str, Any]] = {
    "heat validate": {"template": TEMPLATE},
    "heat validate bad": {"template": UNKNOWN},
    "heat validate no version": {"template": "resources: {}"},
    "stack bad name": {**_STACK, "stack_name": "1 2"},
    "stack bad parameter": {**_STACK, "parameters": {"nosuch": "1"}},
    "stack create": _STACK,
    "stack again": _STACK,
    "stack without networks": {**_STACK, "stack_name": "recording-bare", "template": BARE},
}


@dataclass
class Recorder:
    """Asks, and keeps the answers.

    :param names: of ids, filled as they are seen.
    """

    token: str = ""
    places: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)

    def ask(
        self, name: str, method: str, service: str, path: str = "", *, token: bool = True,
        headers: dict[str, str] | None = None, **more: Any,
    ) -> Any:  # fmt: skip
        """Make a call and record it under a name; return its body."""
        url = self.places[service] + path
        sent = {"X-Auth-Token": self.token} if token else {}
        response = requests.request(
            method, url, headers=sent | (headers or {}), timeout=120, **more
        )
        try:
            body = response.json()
        except ValueError:
            body = response.text
        received = {key.lower(): value for key, value in response.headers.items()}
        self.answers[name] = {
            "service": service,
            "call": f"{method} /{url.partition('//')[2].partition('/')[2]}",
            **({"request_headers": headers} if headers else {}),
            **({"request": more["json"]} if len(str(more.get("json", "x" * 2000))) < 2000 else {}),
            "status": response.status_code,
            "headers": {
                key: "ID" if key.endswith("request-id") else value
                for key, value in sorted(received.items())
                if key not in LEFT_OUT
            },
            "body": body,
        }
        return body

    def get(self, name: str, service: str, path: str = "", **more: Any) -> Any:
        """Make a GET call, as :meth:`ask`."""
        return self.ask(name, "GET", service, path, **more)

    def name(self, thing: dict[str, Any], name: str) -> str:
        """Call an id by a name in the recording; return the id."""
        self.names[thing["id"]] = name
        return str(thing["id"])

    def clean(self) -> dict[str, Any]:
        """Return the answers without secrets, and with names for ids."""

        def named(found: re.Match[str]) -> str:
            return self.names.setdefault(found[0], f"id-{len(self.names)}")

        text = SECRETS.sub("SECRET", json.dumps(self.answers))
        cleaned: dict[str, Any] = json.loads(IDS.sub(named, text))
        return cleaned


def log_in(it: Recorder, auth: dict[str, str]) -> None:
    """Ask Keystone for a token, and take the services' places from its catalog."""
    it.places["identity"] = auth["auth_url"].removesuffix("/v3")

    def body(password: str) -> dict[str, Any]:
        domain = {"name": auth["user_domain_name"]}
        user = {"name": auth["username"], "domain": domain, "password": password}
        return {
            "auth": {
                "identity": {"methods": ["password"], "password": {"user": user}},
                "scope": {"project": {"name": auth["project_name"], "domain": domain}},
            }
        }

    path = it.places["identity"] + "/v3/auth/tokens"
    response = requests.post(path, json=body(auth["password"]), timeout=120)
    it.token = response.headers["X-Subject-Token"]
    token = response.json()["token"]
    it.name(token["project"], "PROJECT")
    it.name(token["user"], "USER")
    for service in token["catalog"]:
        place = next(each["url"] for each in service["endpoints"] if each["interface"] == "public")
        it.places[service["type"]] = place.rstrip("/")
    it.places["identity"] = auth["auth_url"].removesuffix("/v3")
    it.ask("token", "POST", "identity", "/v3/auth/tokens", token=False, json=body(auth["password"]))
    it.ask("token wrong", "POST", "identity", "/v3/auth/tokens", token=False, json=body("wrong"))
    for each in ("token", "token wrong"):
        it.answers[each].pop("request", None)


def keystone(it: Recorder) -> None:
    it.get("keystone versions", "identity", "/", token=False)
    it.get("keystone version", "identity", "/v3", token=False)
    it.get("keystone no token", "identity", "/v3/projects", token=False)
    for name in ("auth/projects", "auth/domains", "auth/system", "regions"):
        it.get(f"keystone {name}", "identity", f"/v3/{name}")
    for name in ("users", "projects", "services", "endpoints", "domains", "roles"):
        it.get(f"keystone {name}", "identity", f"/v3/{name}")
    it.get("keystone missing", "identity", "/v3/nosuch")


def glance(it: Recorder) -> str:
    """Return the id of an image of zeros."""
    it.get("glance versions", "image", "/", token=False)
    it.get("glance no token", "image", "/v2/images", token=False)
    about = {"name": "recording", "disk_format": "raw", "container_format": "bare", "min_disk": 1}
    image = it.name(it.ask("image create", "POST", "image", "/v2/images", json=about), "IMAGE")
    it.ask("image public", "POST", "image", "/v2/images", json={**about, "visibility": "public"})
    it.ask("image bad", "POST", "image", "/v2/images", json={**about, "disk_format": "nosuch"})
    it.get("image no data", "image", f"/v2/images/{image}/file")
    kind = {"Content-Type": "application/octet-stream"}
    it.ask(
        "image upload", "PUT", "image", f"/v2/images/{image}/file", headers=kind, data=bytes(4096)
    )
    it.ask(
        "image again", "PUT", "image", f"/v2/images/{image}/file", headers=kind, data=bytes(4096)
    )
    patch = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
    change = json.dumps([{"op": "add", "path": "/os_distro", "value": "debian"}])
    it.ask("image patch", "PATCH", "image", f"/v2/images/{image}", headers=patch, data=change)
    it.get("image", "image", f"/v2/images/{image}")
    it.get("image members", "image", f"/v2/images/{image}/members")
    for name in ("images", "info/stores", "info/import", "tasks"):
        it.get(f"glance {name}", "image", f"/v2/{name}")
    it.get("image missing", "image", f"/v2/images/{'0' * 8}-0000-0000-0000-{'0' * 12}")
    it.ask("image tag", "PUT", "image", f"/v2/images/{image}/tags/web")
    return image


def neutron(it: Recorder) -> str:
    """Return the id of the network ``private``."""
    it.get("neutron versions", "network", "/", token=False)
    it.get("neutron no token", "network", "/v2.0/networks", token=False)
    known = it.get("networks", "network", "/v2.0/networks")["networks"]
    ids = {each["name"]: it.name(each, each["name"].upper()) for each in known}
    private = ids["private"]
    for name in OF_NEUTRON.split():
        it.get(f"neutron {name}", "network", f"/v2.0/{name}")
    extensions = it.get("extensions", "network", "/v2.0/extensions")["extensions"]
    it.answers["extensions"]["body"] = sorted(each["alias"] for each in extensions)
    it.get("network", "network", f"/v2.0/networks/{private}")
    it.get("network public", "network", f"/v2.0/networks/{ids['public']}")
    it.get("network missing", "network", "/v2.0/networks/nosuch")
    it.get("quota", "network", f"/v2.0/quotas/{it_project(it)}")
    it.get("quota details", "network", f"/v2.0/quotas/{it_project(it)}/details.json")

    def post(name: str, kind: str, /, **body: Any) -> Any:
        return it.ask(
            name, "POST", "network", f"/v2.0/{kind.replace('_', '-')}s", json={kind: body}
        )

    post("network shared", "network", name="r", shared=True)
    post("network external", "network", name="r", **{"router:external": True})
    post("network provider", "network", name="r", **{"provider:network_type": "flat"})
    network = it.name(post("network create", "network", name="r")["network"], "NETWORK")
    post("subnet bad", "subnet", network_id=network, ip_version=4, cidr="10.0.0.1/24")
    about = {"network_id": network, "ip_version": 4}
    subnet = it.name(
        post("subnet create", "subnet", **about, cidr="10.12.0.0/24")["subnet"], "SUBNET"
    )
    post("subnet overlaps", "subnet", **about, cidr="10.12.0.0/16")
    port = it.name(
        post("port create", "port", network_id=network, fixed_ips=[{"subnet_id": subnet}])["port"],
        "PORT",
    )
    post("port of others", "port", network_id=ids["public"])
    post("port address", "port", network_id=private, fixed_ips=[{"ip_address": "1.2.3.4"}])
    post("port name", "port", network_id="nosuch")
    it.get("port", "network", f"/v2.0/ports/{port}")
    it.ask("subnet delete used", "DELETE", "network", f"/v2.0/subnets/{subnet}")
    it.ask("network delete used", "DELETE", "network", f"/v2.0/networks/{network}")
    post("floating ip unrouted", "floatingip", floating_network_id=ids["public"], port_id=port)
    post("floating ip inner", "floatingip", floating_network_id=private)
    made = post("floating ip create", "floatingip", floating_network_id=ids["public"])
    address = it.name(made["floatingip"], "FLOATINGIP")
    it.get("floating ip", "network", f"/v2.0/floatingips/{address}")
    it.ask("floating ip delete", "DELETE", "network", f"/v2.0/floatingips/{address}")
    group = it.name(
        post("group create", "security_group", name="recording")["security_group"], "GROUP"
    )
    rule = {"security_group_id": group, "direction": "ingress", "ethertype": "IPv4"}
    post("rule create", "security_group_rule", **rule, protocol="tcp", port_range_min=22,
         port_range_max=22)  # fmt: skip
    post("rule again", "security_group_rule", **rule, protocol="tcp", port_range_min=22,
         port_range_max=22)  # fmt: skip
    post("rule bad", "security_group_rule", **rule, port_range_min=22)
    it.get("group", "network", f"/v2.0/security-groups/{group}")
    it.ask("group delete", "DELETE", "network", f"/v2.0/security-groups/{group}")
    router = it.name(post("router create", "router", name="recording")["router"], "ROUTER")
    path = f"/v2.0/routers/{router}"
    it.ask(
        "router add", "PUT", "network", f"{path}/add_router_interface", json={"subnet_id": subnet}
    )
    it.ask("router delete used", "DELETE", "network", path)
    it.ask(
        "router remove",
        "PUT",
        "network",
        f"{path}/remove_router_interface",
        json={"subnet_id": subnet},
    )
    it.get("router", "network", path)
    it.ask("router delete", "DELETE", "network", path)
    it.ask("port delete", "DELETE", "network", f"/v2.0/ports/{port}")
    it.ask("network delete", "DELETE", "network", f"/v2.0/networks/{network}")
    return private


def it_project(it: Recorder) -> str:
    return next(key for key, name in it.names.items() if name == "PROJECT")


def nova(it: Recorder, image: str, network: str) -> str:
    """Return the id of a server without an operating system."""
    root = it.places["compute"].removesuffix("/v2.1")
    it.places["nova"] = root
    it.get("nova versions", "nova", "/", token=False)
    it.get("nova version", "compute", "/", token=False)
    it.get("nova no token", "compute", "/servers", token=False)
    it.get("nova microversion", "compute", "/flavors",
           headers={"OpenStack-API-Version": "compute 2.9999"})  # fmt: skip
    flavors = it.get("flavors detail", "compute", "/flavors/detail")["flavors"]
    flavor = next(it.name(each, "FLAVOR") for each in flavors if each["name"] == "m1.tiny")
    it.get("flavors", "compute", "/flavors")
    it.get("flavor", "compute", f"/flavors/{flavor}")
    it.get("flavor newest", "compute", f"/flavors/{flavor}", headers=NEWEST)
    it.get("flavor specs", "compute", f"/flavors/{flavor}/os-extra_specs")
    it.get("flavor by name", "compute", "/flavors/m1.tiny")
    quotas = f"os-quota-sets/{it_project(it)}"
    for name in (
        "limits os-availability-zone os-availability-zone/detail os-hypervisors os-services "
        "os-aggregates os-migrations os-server-groups servers?all_tenants=1 "
        "servers/detail?all_tenants=1 servers?host=cloud os-hosts os-simple-tenant-usage "
        f"os-instance_usage_audit_log {quotas} {quotas}/detail {quotas}/defaults"
    ).split():
        it.get(f"nova {name}", "compute", f"/{name}")
    key = {"keypair": {"name": "recording"}}
    it.ask("keypair generate", "POST", "compute", "/os-keypairs", json=key)
    it.answers["keypair generate"]["body"]["keypair"]["private_key"] = "SECRET"
    it.ask("keypair again", "POST", "compute", "/os-keypairs", json=key)
    it.get("keypair", "compute", "/os-keypairs/recording")
    it.get("keypair newest", "compute", "/os-keypairs/recording", headers=NEWEST)
    it.get("keypairs", "compute", "/os-keypairs")
    it.get("keypair missing", "compute", "/os-keypairs/nosuch")

    def boot(name: str, *, headers: dict[str, str] | None = None, **changed: Any) -> Any:
        about = {
            "name": "Web_1", "imageRef": image, "flavorRef": flavor, "key_name": "recording",
            "metadata": {"role": "web"}, "networks": [{"uuid": network}],
            "user_data": base64.b64encode(b"#!/bin/sh\ntrue\n").decode(),
        } | changed  # fmt: skip
        server = {key: value for key, value in about.items() if value is not None}
        return it.ask(name, "POST", "compute", "/servers", headers=headers, json={"server": server})

    boot("server without networks", headers=NEWEST, networks=None)
    boot("server bad image", imageRef="00000000-0000-0000-0000-000000000000")
    boot("server bad flavor", flavorRef="nosuch")
    boot("server bad key", key_name="nosuch")
    boot("server bad network", networks=[{"uuid": "00000000-0000-0000-0000-000000000000"}])
    boot("server on public", headers=NEWEST, networks=[{"uuid": flavor}])
    boot("server pinned", availability_zone="nova:cloud")
    boot("server none", headers=NEWEST, networks="nosuch")
    server = it.name(boot("server create", headers=NEWEST)["server"], "SERVER")
    path = f"/servers/{server}"
    it.get("server building", "compute", path, headers=NEWEST)
    wait(it, "compute", path, "server", "ACTIVE")
    it.get("server", "compute", path)
    it.get("server newest", "compute", path, headers=NEWEST)
    it.get("servers", "compute", "/servers")
    it.get("servers detail", "compute", "/servers/detail")
    it.get("servers detail newest", "compute", "/servers/detail", headers=NEWEST)
    it.get("servers by status", "compute", "/servers?status=nosuch")
    it.get("server missing", "compute", "/servers/nosuch")
    for name in OF_SERVER.split():
        it.get(f"server {name}", "compute", f"{path}/{name}", headers=NEWEST)
    it.ask(
        "server tags put", "PUT", "compute", f"{path}/tags", headers=NEWEST, json={"tags": ["a"]}
    )
    for name, action in (
        ("console", {"os-getConsoleOutput": {"length": 5}}),
        ("vnc", {"os-getVNCConsole": {"type": "novnc"}}),
        ("reset", {"os-resetState": {"state": "active"}}),
        ("migrate", {"migrate": None}),
        ("inject", {"injectNetworkInfo": None}),
        ("unpause", {"unpause": None}),
        ("unknown", {"nosuch": None}),
        ("lock", {"lock": None}),
        ("unlock", {"unlock": None}),
        ("pause", {"pause": None}),
    ):
        it.ask(f"server action {name}", "POST", "compute", f"{path}/action", json=action)
    wait(it, "compute", path, "server", "PAUSED")
    it.ask("server action paused again", "POST", "compute", f"{path}/action", json={"pause": None})
    it.ask("server action back", "POST", "compute", f"{path}/action", json={"unpause": None})
    ports = it.get("ports of server", "network", f"/v2.0/ports?device_id={server}")["ports"]
    it.name(ports[0], "SERVERPORT")
    return server


def wait(
    it: Recorder, service: str, path: str, kind: str, done: str | Callable[[Any], bool]
) -> Any:
    """Wait for a thing's state, and return the thing; None when it has gone.

    :param done: a state, or a condition of the thing.
    """
    for _ in range(600):
        headers = {"X-Auth-Token": it.token}
        response = requests.get(it.places[service] + path, headers=headers, timeout=120)
        if response.status_code == 404:
            return None
        thing = response.json()[kind]
        if callable(done):
            if done(thing):
                return thing
        else:
            states = [thing.get(name) for name in ("status", "stack_status", "resource_status")]
            if done in states:
                return thing
            if "ERROR" in states or "CREATE_FAILED" in states:
                raise SystemExit(f"{path}: {thing}")
        time.sleep(1)
    raise SystemExit(f"{path} does not get there: {thing}")


@contextlib.contextmanager
def as_guest(address: str, gateway: str, network: str) -> Iterator[int]:
    """Yield the PID of a process in a network with a guest's address."""
    child = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        own = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{child.pid}/ns/net").readlink() == own:
            time.sleep(0.05)
        inner = f"nsenter --net=/proc/{child.pid}/ns/net ip"
        for words in (
            f"ip link add guest type veth peer name eth0 netns {child.pid}",
            f"ip link set guest master brq{network[:11]} up",
            f"{inner} address add {address}/24 dev eth0",
            f"{inner} link set eth0 up",
            f"{inner} route add default via {gateway}",
        ):
            subprocess.run(words.split(), check=True)
        yield child.pid
    finally:
        child.kill()
        child.wait()


def metadata(it: Recorder, pid: int) -> None:
    """Ask the metadata service as the guest does: this process enters its network."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    setns(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY))
    it.places["metadata"] = "http://169.254.169.254"
    try:
        listed = ["", *METADATA.split()]
        leaves = ["/latest/meta-data/"]
        while leaves:
            leaf = leaves.pop(0)
            listed.append(leaf)
            if leaf.endswith("/"):
                body = requests.get(it.places["metadata"] + leaf, timeout=60).text
                leaves += [leaf + line.partition("=")[0] + ("/" if "=" in line else "")
                           for line in body.splitlines()]  # fmt: skip
        listed += ["/latest/meta-data", "/latest/user-data", "/latest/user-data/"]
        for path in listed:
            it.get(f"metadata {path}", "metadata", path, token=False)
        it.ask("metadata password set", "POST", "metadata", "/openstack/latest/password",
               token=False, data=b"secret-word")  # fmt: skip
        it.ask("metadata password again", "POST", "metadata", "/openstack/latest/password",
               token=False, data=b"secret-word")  # fmt: skip
        it.ask("metadata head", "HEAD", "metadata", "/openstack/latest/meta_data.json", token=False)
        it.ask("metadata delete", "DELETE", "metadata", "/openstack/latest/user_data", token=False)
    finally:
        setns(here)


def setns(descriptor: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0x40000000):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(descriptor)


def heat(it: Recorder) -> None:
    it.places["heat"] = it.places["orchestration"].partition("/v1/")[0]
    it.get("heat versions", "heat", "/", token=False)
    it.get("heat no token", "orchestration", "/stacks", token=False)
    it.get("resource types", "orchestration", "/resource_types")
    for name in (
        *("stacks", "services", "build_info", "resource_types/OS::Heat::WaitCondition"),
        *("template_versions", "stacks/nosuch", "software_deployments", "software_configs"),
    ):
        it.get(f"heat {name}", "orchestration", f"/{name}")

    def post(name: str) -> Any:
        path = "/validate" if name.startswith("heat") else "/stacks"
        return it.ask(name, "POST", "orchestration", path, json=HEAT_REQUESTS[name])

    validated = [name for name in HEAT_REQUESTS if name.startswith("heat")]
    for name in (*validated, "stack bad name", "stack bad parameter"):
        post(name)
    stack = post("stack create")["stack"]
    path = f"/stacks/recording/{it.name(stack, 'STACK')}"
    post("stack again")
    made = wait(it, "orchestration", f"{path}/resources/server", "resource", "CREATE_COMPLETE")
    it.names[made["physical_resource_id"]] = "STACKSERVER"
    served = f"/software_deployments/metadata/{made['physical_resource_id']}"
    wait(it, "orchestration", served, "metadata", lambda deployments: bool(deployments))
    for name in ["", *OF_STACK.split()]:
        it.get(f"stack {name}", "orchestration", path + name)
    it.get("stacks", "orchestration", "/stacks?show_nested=true")
    it.get("stacks global", "orchestration", "/stacks?global_tenant=true")
    it.get("stack by name", "orchestration", "/stacks/recording", allow_redirects=False)
    (deployment,) = it.get("deployments of server", "orchestration", served)["metadata"]
    it.get("heat software_configs after", "orchestration", "/software_configs")
    it.get("heat software_deployments after", "orchestration", "/software_deployments")
    agent = it.answers["stack /resources/server/metadata"]["body"]["metadata"]["os-collect-config"]
    cfn(it, agent["cfn"], {each["name"]: each for each in deployment["inputs"]})
    done = wait(it, "orchestration", path, "stack", "CREATE_COMPLETE")
    assert done["outputs"]
    it.get("stack done", "orchestration", path)
    it.get("stack events", "orchestration", f"{path}/events")
    it.get("stack output", "orchestration", f"{path}/outputs/size")
    it.ask("stack delete", "DELETE", "orchestration", path)
    wait(it, "orchestration", path, "stack", "DELETE_COMPLETE")
    it.get("stack deleted", "orchestration", path)
    stack = post("stack without networks")["stack"]
    path = f"/stacks/recording-bare/{it.name(stack, 'BARESTACK')}"
    with contextlib.suppress(SystemExit):
        wait(it, "orchestration", path, "stack", "CREATE_COMPLETE")
    it.get("stack failed", "orchestration", path)
    it.get("stack failed events", "orchestration", f"{path}/events")
    it.get("stack failed resource", "orchestration", f"{path}/resources/r")
    it.ask("stack failed delete", "DELETE", "orchestration", path)
    wait(it, "orchestration", path, "stack", "DELETE_COMPLETE")


def cfn(it: Recorder, secret: dict[str, str], inputs: dict[str, Any]) -> None:
    """Poll and signal as the agent of the stack's server.

    :param secret: of its os-collect-config.
    """
    url = secret["metadata_url"]
    it.places["cfn"] = url.rstrip("/")
    host, path = url.partition("//")[2].partition("/")[::2]
    sent = {
        "Action": "DescribeStackResource", "StackName": secret["stack_name"],
        "LogicalResourceId": secret["path"].partition(".")[0], "SignatureVersion": "2",
        "SignatureMethod": "HmacSHA256", "AWSAccessKeyId": secret["access_key_id"],
        "Timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "Version": "2010-05-15",
    }  # fmt: skip
    about = {"host": host, "verb": "GET", "path": f"/{path}", "params": sent}

    def signed(by: str) -> dict[str, str]:
        return sent | {"Signature": Ec2Signer(by).generate(about)}

    good = signed(secret["secret_access_key"])
    it.get("cfn poll", "cfn", "/", params=good, token=False)
    it.get("cfn poll bad", "cfn", "/", params=signed("wrong"), token=False)
    unknown = sent | {"AWSAccessKeyId": "0" * 32}
    it.get("cfn poll unknown", "cfn", "/", params={**unknown, "Signature": "x"}, token=False)
    it.get("cfn poll unsigned", "cfn", "/", params={"Action": "ListStacks"}, token=False)
    it.get("cfn root", "cfn", "/", token=False)
    output = {"deploy_stdout": "", "deploy_stderr": "", "deploy_status_code": 0, "size": "5"}
    signal = inputs["deploy_signal_id"]["value"]
    it.places["signal"] = signal
    for name in ("signal", "signal again"):
        it.ask(name, "POST", "signal", token=False, json=output)
    it.places["signal"] = signal.replace("Signature=", "Signature=x")
    it.ask("signal bad", "POST", "signal", token=False, json=output)


def versions(folder: Path) -> dict[str, str]:
    """Return the versions of the services' packages in the chroot of this cloud."""
    (status,) = folder.glob("system-*/var/lib/dpkg/status")
    found = re.findall(r"^Package: (\S+)$.*?^Version: (\S+)$", status.read_text(), re.M | re.S)
    return {name: version for name, version in sorted(found) if name in PACKAGES}


def main(file: str) -> None:
    """Ask everything, and write it."""
    config = Path(os.environ["OS_CLIENT_CONFIG_FILE"])
    it = Recorder()
    log_in(it, yaml.safe_load(config.read_text())["clouds"]["real"]["auth"])
    keystone(it)
    image = glance(it)
    network = neutron(it)
    server = nova(it, image, network)
    try:
        (port,) = it.answers["ports of server"]["body"]["ports"]
        address = port["fixed_ips"][0]["ip_address"]
        gateway = address.rpartition(".")[0] + ".1"
        with as_guest(address, gateway, network) as pid:
            metadata(it, pid)
        heat(it)
    finally:
        it.ask("server delete", "DELETE", "compute", f"/servers/{server}")
        wait(it, "compute", f"/servers/{server}", "server", "DELETED")
        it.ask("keypair delete", "DELETE", "compute", "/os-keypairs/recording")
        it.ask("image delete", "DELETE", "image", f"/v2/images/{image}")
        packages = json.dumps(versions(config.parent))
        # A line for each answer: short, and still to be compared by lines.
        lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in it.clean().items()]
        text = ",\n".join(lines)
        Path(file).write_text(f'{{"packages": {packages},\n"answers": {{\n{text}\n}}}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
