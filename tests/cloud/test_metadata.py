"""Nova's metadata service, and the same tree for a config drive."""

from __future__ import annotations

import base64
import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from wire_guest import Guest, collect, guest, listen

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.http.addresses import PORTS
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.metadata import EC2_VERSIONS, OPENSTACK_VERSIONS
from hotplate.cloud.nova.server_records import Notes

SPEC = ServerSpec(
    id="0b3f9a52-58e5-4a8c-9a15-0d2a6e1c7c11",
    name="Web Server_1",
    user_data=b"#cloud-config\n\xff\x00",
    public_keys={"mine": "ssh-ed25519 AAAA me"},
    metadata={"role": "web"},
)


def test_listings_have_no_trailing_newline(vm: Guest) -> None:
    assert vm.get("/").text.split("\n") == list(EC2_VERSIONS)
    assert vm.get("/openstack").text.split("\n") == list(OPENSTACK_VERSIONS)
    assert vm.get("/latest/").text == "meta-data/\nuser-data"
    listing = vm.get("/latest/meta-data/").text
    assert not listing.endswith("\n")
    assert listing.split("\n") == sorted(listing.split("\n"))
    assert {"public-keys/", "placement/", "block-device-mapping/"} <= set(listing.split("\n"))
    assert vm.get("/latest/meta-data/public-keys/").text == "0=mine"
    assert vm.get("/latest/meta-data/public-keys/0/").text == "openssh-key"
    assert vm.get("/latest/meta-data/public-keys/0/openssh-key").text == "ssh-ed25519 AAAA me"
    assert vm.get("/2009-04-04/meta-data/hostname").text == "web-server-1.novalocal"


def test_guest_is_answered_on_each_of_its_interfaces(cloud: Cloud, vm: Guest) -> None:
    sides = [{port: listen() for port in PORTS} for _ in range(8)]
    with cloud.serve(vm.server_id, *sides):
        for side in sides:
            address = "{}:{}".format(*side[80].getsockname())
            data = requests.get(f"http://{address}/openstack/latest/meta_data.json", timeout=120)
            assert data.json()["uuid"] == SPEC.id


def test_openstack_tree(vm: Guest) -> None:
    data = vm.get("/openstack/latest/meta_data.json").json()
    assert data["uuid"] == SPEC.id
    assert data["meta"] == {"role": "web"}
    assert data["public_keys"] == SPEC.public_keys
    assert len(base64.b64decode(data["random_seed"])) == 512
    assert vm.get("/openstack/latest/user_data").content == SPEC.user_data
    assert vm.get("/latest/user-data").content == SPEC.user_data
    assert vm.get("/openstack/2012-08-10/vendor_data.json").status_code == 404
    assert vm.get("/openstack/latest/network_data.json").status_code == 404
    assert vm.get("/openstack/latest/vendor_data.json").json() == {}
    assert set(vm.get("/openstack/latest/").text.split("\n")) == {
        "meta_data.json", "user_data", "password", "vendor_data.json", "vendor_data2.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    "path",
    ["/latest/nothing", "/openstack/2000-01-01", "/nothing", "/ec2/x"],
)
def test_unknown_path_is_404(vm: Guest, path: str) -> None:
    assert vm.get(path).status_code == 404


# Nova's MetadataRequestHandler and InstanceMetadata (``nova/api/metadata``) set these; seen from a
# guest of a Zed cloud, too.
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/plain; charset=UTF-8"),
        ("/latest/meta-data/", "text/plain; charset=UTF-8"),
        ("/latest/meta-data/hostname", "text/plain; charset=UTF-8"),
        ("/latest/user-data", "text/plain; charset=UTF-8"),
        ("/openstack", "text/plain; charset=UTF-8"),
        ("/openstack/latest", "text/plain; charset=UTF-8"),
        ("/openstack/latest/meta_data.json", "application/json"),
        ("/openstack/latest/password", "text/html; charset=UTF-8"),
        ("/openstack/latest/user_data", "text/plain; charset=UTF-8"),
        ("/openstack/latest/vendor_data.json", "application/json"),
        ("/openstack/latest/vendor_data2.json", "application/json"),
    ],
)
def test_file_has_the_content_type_of_nova(vm: Guest, path: str, kind: str) -> None:
    assert vm.get(path).headers["Content-Type"] == kind


def test_network_data_is_text(cloud: Any) -> None:
    spec = replace(SPEC, id="22222222-58e5-4a8c-9a15-0d2a6e1c7c11")
    cloud.servers.boot(spec, Notes(has_ports=True))
    with guest(cloud, spec.id) as vm:
        answer = vm.get("/openstack/latest/network_data.json")
    cloud.servers.delete(spec.id)
    assert answer.json() == {"links": [], "networks": [], "services": []}
    assert answer.headers["Content-Type"] == "text/plain; charset=UTF-8"


def test_error_has_the_form_that_the_request_accepts(vm: Guest) -> None:
    # WSGIHTTPException of WebOb, of which Nova's and its proxy's answers are made.
    url = "http://169.254.169.254/latest/nothing"
    page, text, data = (
        vm.request("GET", url, headers={"Accept": kind})
        for kind in ("*/*", "text/plain", "application/json")
    )
    assert page.headers["Content-Type"] == "text/html; charset=UTF-8"
    assert "<title>404 Not Found</title>" in page.text
    assert text.text.startswith("404 Not Found\n\nThe resource could not be found.")
    assert data.json()["code"] == "404 Not Found"


def test_password_is_set_once(vm: Guest) -> None:
    url = "http://169.254.169.254/openstack/latest/password"
    assert vm.get("/openstack/latest/password").text == ""
    assert vm.request("POST", url, data="secret").status_code == 200
    assert vm.request("POST", url, data="other").status_code == 409
    assert vm.get("/openstack/latest/password").text == "secret"


def test_vendor_data(cloud: Any, vm: Guest) -> None:
    cloud.metadata.set_vendor_data(SPEC.id, "#cloud-config\nx: 1\n")
    document = vm.get("/openstack/latest/vendor_data.json").json()
    assert document == {"cloud-init": "#cloud-config\nx: 1\n"}
    # InstanceMetadata._vendor_data2 with the default of ``[api] vendordata_providers``.
    assert vm.get("/openstack/latest/vendor_data2.json").json() == {"static": document}


def test_real_agent_reads_the_ec2_tree(vm: Guest, tmp_path: Path) -> None:
    collected = collect(vm, tmp_path, {}, "ec2")
    document = collected.documents["ec2"]
    assert document["hostname"] == "web-server-1.novalocal"
    assert document["public-keys"] == {"0": {"openssh-key": "ssh-ed25519 AAAA me"}}
    assert document["placement"] == {"availability-zone": "nova"}


def test_config_drive_tree(cloud: Any, vm: Guest) -> None:
    tree = cloud.metadata_tree(SPEC.id)
    assert tree["openstack/latest/user_data"] == SPEC.user_data
    assert tree["ec2/latest/user-data"] == SPEC.user_data
    ec2 = json.loads(tree["ec2/latest/meta-data.json"])
    assert ec2["public-keys"] == {"0": {"openssh-key": "ssh-ed25519 AAAA me"}}
    # Lists and numbers stay such in JSON (get_ec2_metadata of ``nova/api/metadata/base.py``).
    assert (ec2["security-groups"], ec2["ami-launch-index"]) == (["default"], 0)
    assert not any("password" in name for name in tree)
    served = json.loads(vm.get("/openstack/latest/meta_data.json").text)
    assert json.loads(tree["openstack/latest/meta_data.json"]) == served


def test_two_guests_get_their_own_metadata(cloud: Any, vm: Guest) -> None:
    other = ServerSpec(id="11111111-58e5-4a8c-9a15-0d2a6e1c7c11", name="other")
    cloud.servers.boot(other)
    try:
        with guest(cloud, other.id) as second:
            assert second.get("/openstack/latest/meta_data.json").json()["name"] == "other"
            assert second.get("/latest/user-data").status_code == 404
            assert vm.get("/openstack/latest/meta_data.json").json()["name"] == SPEC.name
    finally:
        cloud.servers.delete(other.id)


def test_metadata_is_served_on_a_unix_socket(cloud: Any, vm: Guest, tmp_path: Path) -> None:
    path = tmp_path / "metadata.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(5)
    with cloud.serve(SPEC.id, {80: listener}), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /latest/meta-data/hostname HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.0 200 OK")
    assert answer.endswith(b"web-server-1.novalocal")


def test_listeners_are_closed(cloud: Any) -> None:
    before = threading.active_count()
    for _ in range(3):
        with guest(cloud, "nobody") as vm:
            assert vm.get("/latest/user-data").status_code == 404
    assert threading.active_count() <= before + 1
