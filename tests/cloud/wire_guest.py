"""A guest that speaks the real wire protocols, without an image, for the tests of the cloud.

It reads its user data as a guest does, runs the unmodified os-collect-config once for each poll,
and signals according to a deployment's inputs.
"""

from __future__ import annotations

import base64
import email
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.http.addresses import GUEST_ADDRESS, PORTS


def listen() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    return listener


class Guest:
    """One guest's network: the address 169.254.169.254 leads to its own listeners."""

    def __init__(self, cloud: Cloud, server_id: str, served: ExitStack) -> None:
        listeners = {port: listen() for port in PORTS}
        self.ports = {port: listener.getsockname()[1] for port, listener in listeners.items()}
        self.server_id = server_id
        served.enter_context(cloud.serve(server_id, listeners))

    def url(self, url: str) -> str:
        """Return ``url`` as this process reaches it."""
        for port, actual in self.ports.items():
            netloc = GUEST_ADDRESS if port == 80 else f"{GUEST_ADDRESS}:{port}"
            for scheme in ("http", "ws"):
                if url == f"{scheme}://{netloc}" or url.startswith(f"{scheme}://{netloc}/"):
                    return url.replace(f"{scheme}://{netloc}", f"{scheme}://127.0.0.1:{actual}", 1)
        return url

    def request(self, method: str, url: str, **fields: Any) -> requests.Response:
        """Send a request as the guest does: to our listener, with the guest's Host header."""
        headers = dict(fields.pop("headers", {}))
        headers["Host"] = urllib.parse.urlsplit(url).netloc
        return requests.request(
            method, self.url(url), headers=headers, timeout=120, allow_redirects=False, **fields
        )

    def get(self, path: str) -> requests.Response:
        """GET a path from the metadata service."""
        return self.request("GET", f"http://{GUEST_ADDRESS}{path}")

    def user_data(self) -> bytes:
        response = self.get("/latest/user-data")
        assert response.status_code == 200
        return response.content

    def cfn_init_data(self) -> dict[str, Any]:
        """Return the part of the user data that configures the agent's polls."""
        for part in email.message_from_bytes(self.user_data()).walk():
            if part.get_filename() == "cfn-init-data":
                document: dict[str, Any] = json.loads(part.get_payload(decode=True))
                return document
        raise AssertionError("there is no cfn-init-data in the user data")


@contextmanager
def guest(cloud: Cloud, server_id: str) -> Iterator[Guest]:
    with ExitStack() as served:
        yield Guest(cloud, server_id, served)


def sign(secret: str, verb: str, url: str, params: dict[str, str]) -> dict[str, str]:
    """Return ``params`` with an EC2 signature (version 2), computed from the specification."""
    parts = urllib.parse.urlsplit(url)
    params = {"SignatureVersion": "2", "SignatureMethod": "HmacSHA256", **params}
    query = "&".join(
        f"{urllib.parse.quote(name, safe='')}={urllib.parse.quote(params[name], safe='-_~')}"
        for name in sorted(params)
    )
    text = "\n".join([verb, parts.netloc.lower(), parts.path, query])
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    return {**params, "Signature": base64.b64encode(digest).decode()}


def signed_poll(cfn: dict[str, str], **changes: str) -> dict[str, str]:
    """Return the signed query of a poll of the cfn API, with the credentials in ``cfn``."""
    params = {
        "Action": "DescribeStackResource",
        "StackName": cfn["stack_name"],
        "LogicalResourceId": cfn["path"].split(".")[0],
        "AWSAccessKeyId": cfn["access_key_id"],
        **changes,
    }
    return sign(cfn["secret_access_key"], "GET", cfn["metadata_url"], params)


def describe(guest: Guest, cfn: dict[str, str], **changes: str) -> requests.Response:
    """Poll the cfn API once, signed with the credentials in ``cfn``."""
    return guest.request("GET", cfn["metadata_url"], params=signed_poll(cfn, **changes))


@dataclass
class Collected:
    """The output of one run of os-collect-config."""

    status: int
    documents: dict[str, Any]
    errors: str

    def deployments(self, key: str) -> list[dict[str, Any]]:
        deployments: list[dict[str, Any]] = self.documents.get(key, {}).get("deployments", [])
        return deployments


#: Redirects the guest's address to the listeners of one guest, below everything the agent uses.
_SITE = """
import json, os, socket
_ports = {int(k): v for k, v in json.loads(os.environ["HOTPLATE_TEST_PORTS"]).items()}
_create = socket.create_connection
_connect = socket.socket.connect
def connect(self, address):
    if isinstance(address, tuple) and address[0] == "169.254.169.254":
        address = ("127.0.0.1", _ports[address[1]]) + tuple(address[2:])
    return _connect(self, address)
socket.socket.connect = connect
"""


def collect(guest: Guest, state: Path, section: dict[str, Any], kind: str) -> Collected:
    """Run the real os-collect-config once with one collector, as a guest would.

    :param section: the collector's section of ``os-collect-config`` in the metadata.
    """
    state.mkdir(parents=True, exist_ok=True)
    site = state / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(_SITE)
    lines = ["[DEFAULT]", f"cachedir = {state}/cache", f"backup_cachedir = {state}/backup"]
    lines += [f"collectors = {kind}", f"[{kind}]"]
    lines += [f"{name} = {value}" for name, value in section.items() if value is not None]
    config = state / "agent.conf"
    config.write_text("\n".join(lines) + "\n")
    run = subprocess.run(
        [
            str(Path(sys.executable).with_name("os-collect-config")),
            f"--config-file={config}",
            "--one-time",
            "--print",
        ],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(site),
            "PYTHONWARNINGS": "ignore",
            "LC_ALL": "C",
            "HOTPLATE_TEST_PORTS": json.dumps(guest.ports),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    documents = json.loads(run.stdout) if run.stdout.strip().startswith("{") else {}
    return Collected(run.returncode, documents, run.stderr)


NOTIFIER = Path(__file__).parents[2] / "hooks" / "heat-config-notify"


def notify(
    guest: Guest, state: Path, deployment: dict[str, Any], result: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    """Signal ``result`` by the notifier in our images, as the guest would."""
    state.mkdir(parents=True, exist_ok=True)
    config = state / f"{deployment['id']}.json"
    config.write_text(json.dumps(deployment))
    program = _SITE + "\nimport runpy, sys\nrunpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
    return subprocess.run(
        [sys.executable, "-c", program, str(NOTIFIER), str(config)],
        input=json.dumps(result),
        env={
            "PATH": os.environ["PATH"],
            "HEAT_CONFIG_LIB": str(NOTIFIER.parent),
            "HOTPLATE_TEST_PORTS": json.dumps(guest.ports),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
