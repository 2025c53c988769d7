"""HTTP requests: kept connections, redirects, proxies, certificates and limits."""

from __future__ import annotations

import base64
import gzip
import socket
from collections.abc import Callable, Iterator

import pytest
from heat_agent.collect import trust, web
from heat_agent.collect.problems import Unavailable
from heat_agent.collect.trust import Trust
from heat_agent.collect.web import Client
from raw_server import ForwardProxy, request
from stub_server import Reply

from .conftest import Cloud

SIGNED = "/swift/o?temp_url_sig=0123456789abcdef&temp_url_expires=2000000000"


@pytest.fixture
def make_client():
    made = []

    def make(environ=None, private=None):
        environ = environ or {}
        made.append(Client(Trust(environ, private), environ))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(make_client):
    return make_client()


@pytest.fixture
def cert(secure) -> str:
    """The untrusted certificate of *https*."""
    return str(secure("IP:127.0.0.1")[1])


@pytest.fixture
def https(secure) -> Iterator[Cloud]:
    """A cloud by HTTPS."""
    made = Cloud(context=secure("IP:127.0.0.1")[0])
    made.reply = lambda asked: Reply(body=b"{}")
    yield made
    made.close()


@pytest.fixture
def proxy() -> Iterator[ForwardProxy]:
    with ForwardProxy() as made:
        yield made


@pytest.fixture
def wire(listen) -> Callable[..., str]:
    """Serve answers, one per connection, then close it without notice; return the URL."""

    def make(*answers: bytes) -> str:
        left = iter(answers)

        def serve(connection: socket.socket) -> None:
            request(connection)
            connection.sendall(next(left, b""))

        return listen(serve).url + "/"

    return make


def test_proxy_of_the_tests_drops_a_request_that_ends_early(proxy):
    """An earlier version waited for the blank line for ever, and used a whole processor."""
    host, _, port = proxy.host.partition(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(b"GET http://")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_polls_share_a_connection(client, cloud):
    cloud.reply = lambda asked: Reply(body=b"{}")
    for _ in range(5):
        assert client.ask(cloud.url + "/x").body == b"{}"
    assert cloud.connections == 1


def test_connection_that_the_server_closed_is_replaced(client, wire):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    url = wire(answer + b"{}", answer + b"[]")
    assert client.ask(url).body == b"{}"
    assert client.ask(url).body == b"[]"


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b""),
        (b"HTTP/1.1 204 None\r\nContent-Length: 9\r\n\r\n", b""),
        (b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hint\r\n\r\nHTTP/1.1 200 OK\r\n\r\nx", b"x"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;a=b\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
            b"abc0123456789",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
            + gzip.compress(b"packed", mtime=0),
            b"packed",
        ),
        (b"HTTP/1.1 200\nContent-Length: 1\n\nx", b"x"),
    ],
    ids=repr,
)
def test_bodies_are_read_by_their_length(client, wire, raw, body):
    """RFC 9112 6: the forms of a body's length."""
    assert client.ask(wire(raw)).body == body


def test_redirect_to_the_same_host_keeps_all_headers(client, cloud):
    moved = Reply(302, headers={"Location": "/other?x=1"})
    cloud.reply = lambda asked: moved if asked.path == "/first" else Reply(body=b"{}")
    answer = client.ask(cloud.url + "/first", headers={"X-Auth-Token": "secret"})
    assert answer.url == cloud.url + "/other?x=1"
    assert cloud.requests[1].headers["X-Auth-Token"] == "secret"


def test_redirect_to_another_host_drops_credentials(client, cloud):
    other = f"http://localhost:{cloud.port}/other"
    cloud.reply = lambda asked: (
        Reply(307, headers={"Location": other}) if asked.path == "/first" else Reply(body=b"{}")
    )
    headers = {
        "X-Auth-Token": "secret",
        "Authorization": "secret",
        "Cookie": "secret",
        "Accept": "application/json",
    }
    assert client.ask(cloud.url + "/first", headers=headers).body == b"{}"
    assert cloud.requests[1].headers["Host"] == f"localhost:{cloud.port}"
    assert "secret" not in cloud.requests[1].headers.values()
    assert cloud.requests[1].headers["Accept"] == "application/json"


def test_redirect_does_not_send_a_signature_to_another_host(client, cloud):
    """python-requests follows it."""
    cloud.reply = lambda asked: Reply(
        302, headers={"Location": f"http://localhost:{cloud.port}{asked.path}"}
    )
    with pytest.raises(Unavailable, match="signature to another host") as caught:
        client.ask(cloud.url + SIGNED)
    assert "temp_url" not in str(caught.value)
    assert len(cloud.requests) == 1


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
def test_only_get_and_head_are_redirected(client, cloud, method):
    cloud.reply = lambda asked: Reply(307, headers={"Location": "/other"})
    with pytest.raises(Unavailable):
        client.ask(cloud.url + "/first", method=method, body=b"password")
    assert len(cloud.requests) == 1


def test_redirects_are_limited(client, cloud):
    cloud.reply = lambda asked: Reply(302, headers={"Location": asked.path + "x"})
    with pytest.raises(Unavailable, match="after 5 redirects") as caught:
        client.ask(cloud.url + "/first")
    assert caught.value.overloaded
    assert len(cloud.requests) == 6


@pytest.mark.tool("openssl")
def test_redirect_from_https_to_http_is_refused(make_client, https, cloud, cert):
    https.reply = lambda asked: Reply(302, headers={"Location": cloud.url + "/x"})
    with pytest.raises(Unavailable, match="from HTTPS to HTTP"):
        make_client().ask(https.url + "/x", ca_file=cert)
    assert cloud.requests == []


@pytest.mark.tool("openssl")
def test_trusted_certificates_are_those_of_the_options(make_client, https, cert):
    with pytest.raises(Unavailable, match="not trusted"):
        make_client().ask(https.url + "/x")
    for client, more in (
        (make_client(), {"ca_file": cert}),
        (make_client(), {"verify": False}),
        (make_client({"REQUESTS_CA_BUNDLE": cert}), {}),
        (make_client({"REQUESTS_CA_BUNDLE": "/not/there", "CURL_CA_BUNDLE": cert}), {}),
        (make_client(private=cert), {}),
    ):
        assert client.ask(https.url + "/x", **more).body == b"{}"
    with pytest.raises(Unavailable, match='"/not/there" cannot be read'):
        make_client().ask(https.url + "/x", ca_file="/not/there")


@pytest.mark.tool("openssl")
def test_certificates_are_where_the_distribution_has_them(make_client, https, cert, monkeypatch):
    """A Python that looks in another place than the distribution does."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, "/not/there")
    monkeypatch.setattr(trust, "BUNDLES", ("/not/there", cert))
    assert make_client().ask(https.url + "/x").body == b"{}"


@pytest.mark.tool("openssl")
def test_unverified_connection_is_not_reused_for_a_verified_request(client, https):
    client.ask(https.url + "/x", verify=False)
    with pytest.raises(Unavailable, match="not trusted"):
        client.ask(https.url + "/x")


def test_proxy_is_used_for_http(make_client, proxy):
    proxy.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nproxy"
    client = make_client({"http_proxy": f"http://user:p%40ss@{proxy.host}"})
    assert client.ask("http://heat.invalid:8000/v1/?a=b").body == b"proxy"
    asked = proxy.requests[0]
    assert (asked.method, asked.path) == ("GET", "http://heat.invalid:8000/v1/?a=b")
    credentials = base64.b64encode(b"user:p@ss").decode()
    assert asked.headers["Proxy-Authorization"] == f"Basic {credentials}"


@pytest.mark.tool("openssl")
def test_proxy_is_used_for_https(make_client, proxy, https, cert):
    client = make_client({"HTTPS_PROXY": f"http://user:pass@{proxy.host}"})
    answer = client.ask(https.url + "/x", headers={"X-Auth-Token": "t"}, ca_file=cert)
    assert answer.body == b"{}"
    asked = proxy.requests[0]
    assert (asked.method, asked.path) == ("CONNECT", https.host)
    assert "X-Auth-Token" not in asked.headers
    assert "Proxy-Authorization" not in https.requests[0].headers


def test_no_proxy_is_obeyed(make_client, cloud):
    cloud.reply = lambda asked: Reply(body=b"{}")
    client = make_client({"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"})
    assert client.ask(cloud.url + "/x").body == b"{}"


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "http://127.0.0.1:9", "http://["])
def test_broken_proxy_is_named(make_client, proxy):
    client = make_client({"http_proxy": proxy.replace("//", "//user:secret@")})
    with pytest.raises(Unavailable, match="proxy") as caught:
        client.ask("http://heat.invalid" + SIGNED)
    assert "secret" not in str(caught.value)
    assert "temp_url" not in str(caught.value)


def test_ipv6_address_is_reached(client):
    try:
        cloud = Cloud("::1")
    except OSError:
        pytest.skip("this host has no IPv6")
    cloud.reply = lambda asked: Reply(body=b"{}")
    try:
        assert client.ask(cloud.url + "/x").body == b"{}"
        assert cloud.requests[0].headers["Host"] == cloud.host
    finally:
        cloud.close()


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/x", "http://no-such-host.invalid/", "ftp://x/", "http://[/", "no url"],
)
def test_invalid_url_is_one_sentence_without_its_query(client, url):
    with pytest.raises(Unavailable) as caught:
        client.ask(url + "?Signature=secret-signature")
    assert "secret-signature" not in str(caught.value)


def test_hanging_server_times_out(client, listen):
    hanging = listen(lambda connection: (request(connection), request(connection)))
    with pytest.raises(Unavailable, match=r"within 0\.2 seconds") as caught:
        client.ask(hanging.url + "/", seconds=0.2)
    assert caught.value.overloaded


@pytest.mark.parametrize(
    ("status", "headers", "overloaded", "wait"),
    [
        (404, {}, False, None),
        (403, {"Retry-After": "9"}, False, None),
        (429, {"Retry-After": "9"}, True, 9.0),
        (503, {"Retry-After": "99999"}, True, 300.0),
        (503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, True, None),
        (500, {}, True, None),
    ],
)
def test_error_statuses_are_unavailable(client, cloud, status, headers, overloaded, wait):
    cloud.reply = lambda asked: Reply(status, headers=headers)
    with pytest.raises(Unavailable, match=str(status)) as caught:
        web.accept(client.ask(cloud.url + "/x"))
    assert (caught.value.overloaded, caught.value.wait) == (overloaded, wait)


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("application/json", "ü".encode(), "ü"),
        ("text/plain", "ü".encode(), "ü"),
        ("text/plain; charset=ISO-8859-1", b"\xfc", "ü"),
        ('text/plain; charset="utf-8"; x', "ü".encode(), "ü"),
        ("text/plain; charset=utf-7", b"x", None),
        ("text/plain", b"\xfc", None),
    ],
)
def test_charsets_are_decoded_or_refused(client, cloud, kind, body, text):
    cloud.reply = lambda asked: Reply(body=body, headers={"Content-Type": kind})
    answer = client.ask(cloud.url + "/x")
    if text is None:
        with pytest.raises(Unavailable):
            web.text_of(answer)
    else:
        assert web.text_of(answer) == text
