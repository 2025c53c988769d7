"""cfn-signal against an HTTP server that checks requests as a wait condition does."""

from __future__ import annotations

import base64
import json
import socket
import urllib.parse

import pytest
from keystoneclient.contrib.ec2 import utils as ec2

from .conftest import SECRET, Server, judge

KEYS = {"access": "AK", "secret": SECRET}


def signed(server, path="/v1/waitcondition/arn%3Aopenstack%3Aheat%3A%3At1%3Astacks/demo/s/res/h"):
    """Return the address as Heat makes it (signature version 2, with keystoneclient's signer)."""
    host = urllib.parse.urlsplit(server.url).netloc
    parameters = {
        "SignatureMethod": "HmacSHA256",
        "SignatureVersion": "2",
        "AWSAccessKeyId": KEYS["access"],
        "Timestamp": "2026-01-02T03:04:05Z",
    }
    request = {
        "host": host,
        "verb": "PUT",
        "path": urllib.parse.unquote(path),
        "params": parameters,
    }
    parameters["Signature"] = ec2.Ec2Signer(KEYS["secret"]).generate(request)
    return f"{server.url}{path}?{urllib.parse.urlencode(parameters)}"


def body(server):
    return json.loads(server.requests[-1].body)


def test_signed_address_is_accepted(cfn, server, python):
    server.check = judge
    cfn("cfn-signal", "-e", "0", "-r", "Done", "-i", "me", signed(server), python=python, check=0)
    assert server.requests[-1].method == "PUT"
    assert body(server) == {"Status": "SUCCESS", "Reason": "Done", "UniqueId": "me", "Data": ""}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], "SUCCESS"),
        (["-s", "true"], "SUCCESS"),
        (["-s", "False"], "FAILURE"),
        (["--success", "false", "-e", "0"], "SUCCESS"),
        (["-e", "0"], "SUCCESS"),
        (["--exit-code", "00"], "SUCCESS"),
        (["-e", "1"], "FAILURE"),
        (["-e", "10"], "FAILURE"),
        (["-e", ""], "FAILURE"),
        (["-e", "none"], "FAILURE"),
        (["-e", "-1"], "FAILURE"),
    ],
)
def test_status_is_that_of_the_arguments(cfn, server, arguments, status):
    if arguments[-1:] == ["-1"]:
        arguments = ["--exit-code=-1"]
    cfn("cfn-signal", *arguments, "-i", "x", server.url, check=0)
    assert body(server)["Status"] == status


def test_any_text_is_sent_as_valid_json(cfn, server):
    reason, data = 'quo"te \\ ☃\n', "d" * 100_000
    cfn("cfn-signal", "-r", reason, "-d", data, "-i", "ü", server.url, check=0)
    assert (body(server)["Reason"], body(server)["Data"], body(server)["UniqueId"]) == (
        reason,
        data,
        "ü",
    )


def test_id_is_novas_and_is_kept(cfn, server, tmp_path):
    server.answers = [(200, json.dumps({"uuid": "the-uuid"}).encode()), (200, b"")]
    env = {"HEAT_CFN_NOVA_URL": server.url + "/openstack/2012-08-10/meta_data.json"}
    cfn("cfn-signal", server.url, env=env, check=0)
    cfn("cfn-signal", server.url, env=env, check=0)
    assert [heard.method for heard in server.requests] == ["GET", "PUT", "PUT"]
    assert body(server)["UniqueId"] == "the-uuid"
    assert (tmp_path / "state/nova_meta.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "answer", [(404, b""), (200, b"<html>"), (200, b"[]"), (200, b'{"uuid":1}')]
)
def test_id_is_the_host_name_without_nova(cfn, server, answer):
    server.answers = [answer, (200, b"")]
    cfn("cfn-signal", server.url, env={"HEAT_CFN_NOVA_URL": server.url + "/nova"}, check=0)
    assert body(server)["UniqueId"] == socket.getfqdn()


@pytest.mark.defect("K16")
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, "cut"])
def test_temporary_failure_is_retried(cfn, server, status):
    """heat-cfntools sends once and reports success for any answer."""
    server.answers = [(status, b""), (200, b"")]
    cfn("cfn-signal", "-i", "x", server.url, check=0)
    assert len(server.requests) == 2


@pytest.mark.defect("K16")
@pytest.mark.parametrize("status", [301, 400, 401, 403, 404])
def test_refusal_fails_at_once(cfn, server, status):
    server.answers = [(status, b"", {"Location": "http://127.0.0.1:1/"})]
    done = cfn("cfn-signal", "-i", "x", server.url + "/v1/?Signature=SECRET", check=1)
    assert len(server.requests) == 1
    assert str(status) in done.stderr
    assert done.stderr.count("\n") == 1
    assert ("15 minutes" in done.stderr) == (status == 403)


def test_unreachable_server_fails_in_the_end(cfn, server):
    server.answers = [(503, b"")]
    done = cfn("cfn-signal", "--attempts", "2", "-i", "x", server.url, check=1)
    assert len(server.requests) == 2
    assert "503" in done.stderr
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        done = cfn("cfn-signal", "--attempts", "1", "-i", "x", url, check=1)
    assert "Connection refused" in done.stderr


def test_address_and_values_are_not_in_the_log(cfn, server, tmp_path):
    server.answers = [(503, b""), (403, b"")]
    url = signed(server)
    done = cfn("cfn-signal", "-r", "PLANTED", "-d", "PLANTED", "-i", "x", url, check=1)
    log = (tmp_path / "cfn-signal.log").read_text()
    assert log.count("\n") == 2
    for text in (log, done.stdout, done.stderr):
        for secret in ("PLANTED", "Signature=", "AWSAccessKeyId", KEYS["access"]):
            assert secret not in text
    assert (tmp_path / "cfn-signal.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "url",
    ["", "no-address", "ftp://host/", "file:///etc/passwd", "http://", "http://h:x/", "h ttp://"],
)
def test_malformed_address_is_reported_in_a_sentence(cfn, url):
    done = cfn("cfn-signal", "-i", "x", url, check=1)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [[], ["-s", "maybe", "http://h/"], ["--attempts", "0", "http://h/"]]
)
def test_wrong_command_line_is_status_2(cfn, arguments):
    cfn("cfn-signal", *arguments, check=2)


# The route


# The requests are those of the runner: see runner/test_request.py.
def test_proxy_is_used(cfn, server, python):
    proxy = server.url.replace("//", "//user:pass%20word@")
    address = "http://heat.invalid/v1/x?Signature=s"
    cfn("cfn-signal", "-i", "me", address, env={"http_proxy": proxy}, python=python, check=0)
    (heard,) = server.requests
    assert heard.path == address
    assert heard.headers["Host"] == "heat.invalid"
    credentials = base64.b64encode(b"user:pass word").decode()
    assert heard.headers["Proxy-Authorization"] == f"Basic {credentials}"


def test_nova_is_asked_without_a_proxy(cfn, server):
    """Its metadata service is on the server's own link."""
    server.answers = [(200, b'{"uuid": "of-nova"}'), (200, b"")]
    env = {"HEAT_CFN_NOVA_URL": f"{server.url}/nova", "http_proxy": server.url}
    cfn("cfn-signal", "http://heat.invalid/v1/x", env=env, check=0)
    assert [heard.path for heard in server.requests] == ["/nova", "http://heat.invalid/v1/x"]
    assert body(server)["UniqueId"] == "of-nova"


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "http://[::1", "http://"])
def test_unusable_proxy_is_reported_at_once(cfn, proxy, tmp_path):
    done = cfn(
        *("cfn-signal", "-i", "me", "http://heat.invalid/"), check=1, env={"http_proxy": proxy}
    )
    assert "proxy" in done.stderr
    assert "trying again" not in (tmp_path / "cfn-signal.log").read_text()


@pytest.mark.tool("openssl")
def test_ca_file_of_the_settings_is_trusted(cfn, tmp_path, secure):
    """/etc/heat-config.conf has it for the signals of deployments."""
    context, cert = secure("IP:127.0.0.1")
    server = Server(context)
    call = ["cfn-signal", "-i", "me", "--attempts", "1", f"{server.url}/v1/x"]
    assert "certificate" in cfn(*call, check=1).stderr.lower()
    settings = tmp_path / "heat-config.conf"
    settings.write_text(f"ca_file = {cert}\n")
    cfn(*call, env={"HEAT_CONFIG_FILE": str(settings)}, check=0)
    server.close()
    assert len(server.requests) == 1
