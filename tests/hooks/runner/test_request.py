"""The route of a signal's request: IPv6, proxies, odd URLs, compared with python-requests."""

import base64
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from heat_config import proxy
from heat_config.request import Target
from programs import completed
from raw_server import ForwardProxy
from stub_server import StubServer

HOOKS = str(Path(__file__).resolve().parents[3] / "hooks")
QUERY = "?Timestamp=2026-01-02T03%3A04%3A05Z&Signature=c2VjcmV0"


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://[::1]/v1/x", "::1", 80, "[::1]"),
        ("https://[2001:db8::10]/v1/x", "2001:db8::10", 443, "[2001:db8::10]"),
        ("https://[2001:db8::abcd]/v1/x", "2001:db8::abcd", 443, "[2001:db8::abcd]"),
        ("https://[2001:db8::1]:8000/x", "2001:db8::1", 8000, "[2001:db8::1]:8000"),
        ("http://[fe80::1%25eth0]/x", "fe80::1%eth0", 80, "[fe80::1]"),
        ("http://[fe80::1%25eth0]:8000/x", "fe80::1%eth0", 8000, "[fe80::1]:8000"),
        ("https://heat.example:443/x", "heat.example", 443, "heat.example"),
        ("https://Heat.Example/x", "heat.example", 443, "heat.example"),
        ("http://bücher.example/x", "xn--bcher-kva.example", 80, "xn--bcher-kva.example"),
    ],
)
def test_url_is_parsed(url, host, port, authority):
    parts = Target(url)
    assert (parts.host, parts.port, parts.authority) == (host, port, authority)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (" http://h/v1/x?a=%2F+b \n", "/v1/x?a=%2F+b"),
        ("http://h/stück?ä=☃", "/st%C3%BCck?%C3%A4=%E2%98%83"),
        ("http://h?q", "/?q"),
        ("http://h/a#part", "/a"),
    ],
)
def test_path_is_that_of_python_requests(url, path):
    """requests 2.32 strips surrounding blanks and encodes characters beyond ASCII."""
    assert Target(url).path == path


@pytest.mark.parametrize(
    "url",
    [
        *(None, 5, "", "x", "ftp://h/", "http://", "http://a b/", "//h/x", "http://h/\ud800"),
        # Text that would add lines to a request's head, and characters that IDNA turns into a
        # blank.
        *("http://h%0d%0aX-More:%20y/", "http://%00/", "http://h%7f/", "http://\xa0h/"),
    ],
)
def test_malformed_url_is_a_value_error(url):
    with pytest.raises(ValueError):
        Target(url)


def test_a_signal_reaches_an_ipv6_address_on_any_port(guest, cfn):
    try:
        server = StubServer("::1")
    except OSError as error:
        pytest.skip(f"no IPv6 on this host: {error}")
    assert guest.run(cfn(url=f"{server.url}/v1/signal/x{QUERY}")).status == 0
    server.close()
    assert server.requests[0].headers["Host"] == server.host


@pytest.mark.root
def test_a_signal_reaches_the_default_port_of_an_ipv6_address(guest, cfn):
    """Runs in a network namespace: port 80 of the host may be taken, or need privileges."""
    guest.metadata(cfn(url=f"http://[::1]/v1/signal/x{QUERY}"))
    program = (
        "import http.server, os, socket, subprocess, sys, threading\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_POST(self):\n"
        "        self.rfile.read(int(self.headers['Content-Length']))\n"
        "        print(self.headers['Host'], flush=True)\n"
        "        self.send_response(200); self.end_headers()\n"
        "class Server(http.server.ThreadingHTTPServer):\n"
        "    address_family = socket.AF_INET6\n"
        "server = Server(('::1', 80), Handler)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        f"sys.exit(subprocess.call([sys.executable, '-IS', {HOOKS + '/55-heat-config'!r}]))\n"
    )
    done = completed(
        ["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {sys.executable} -"],
        input=program,
        env=guest.environment,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no network namespace can be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "[::1]\n" in done.stdout
    assert guest.state_of("d-1") == "signalled"


@pytest.fixture
def forward() -> Iterator[ForwardProxy]:
    """A forward proxy that is given a user."""
    with ForwardProxy() as proxy:
        proxy.url = f"http://user:p%40ss@{proxy.host}"
        yield proxy


def seen(proxy: ForwardProxy) -> list[tuple[str, str, str | None]]:
    """Return the method, the address and the user of the requests."""
    return [
        (asked.method, asked.path, asked.headers.get("Proxy-Authorization"))
        for asked in proxy.requests
    ]


USER = "Basic " + base64.b64encode(b"user:p@ss").decode()


def test_a_signal_by_http_goes_through_the_proxy(guest, heat, cfn, forward):
    """Only the proxy can resolve the name, as in an isolated tenant network."""
    guest.settings["http_proxy"] = forward.url
    url = f"http://heat.invalid:{heat.port}/v1/signal/x"
    assert guest.run(cfn(url=url + QUERY)).status == 0
    assert seen(forward) == [("POST", url + QUERY, USER)]
    assert heat.requests[0].headers["Host"] == f"heat.invalid:{heat.port}"
    assert guest.state_of("d-1") == "signalled"


def test_no_proxy_is_obeyed(guest, heat, cfn, forward):
    guest.settings.update(http_proxy=forward.url, no_proxy="example.org,127.0.0.0/8")
    assert guest.run(cfn()).status == 0
    assert seen(forward) == []
    assert len(heat.requests) == 1


@pytest.mark.tool("openssl")
def test_a_signal_by_https_goes_through_the_proxy_unseen(guest, cfn, forward, make_heat, secure):
    context, certificate = secure("DNS:heat.invalid")
    server = make_heat(context)
    guest.settings["https_proxy"] = forward.url
    guest.config.write_text(f"ca_file = {certificate}\n")
    done = guest.run(cfn(url=f"https://heat.invalid:{server.port}/v1/signal/x{QUERY}"))
    assert done.status == 0, done.log
    assert seen(forward) == [("CONNECT", f"heat.invalid:{server.port}", USER)]
    assert server.requests[0].headers["Host"] == f"heat.invalid:{server.port}"
    assert "Proxy-Authorization" not in server.requests[0].headers
    assert guest.state_of("d-1") == "signalled"


@pytest.mark.parametrize(("scheme", "status"), [("http", 403), ("https", 407), ("https", 503)])
def test_proxy_that_refuses_is_named_without_its_password(guest, cfn, forward, scheme, status):
    forward.answer = b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status
    guest.settings[f"{scheme}_proxy"] = forward.url
    done = guest.run(cfn(url=f"{scheme}://heat.invalid/v1/signal/x{QUERY}"))
    assert guest.state_of("d-1") == "finished"
    assert str(status) in guest.failures()[0]
    if scheme == "https":
        assert forward.host in guest.failures()[0]
    for secret in ("p%40ss", "p@ss", "c2VjcmV0"):
        assert secret not in done.log + guest.console.read_text()


@pytest.mark.parametrize(
    ("proxy", "part"),
    [
        ("http://127.0.0.1:1", 'through the proxy "http://127.0.0.1:1": Connection refused'),
        ("http://no.such.invalid:3128", 'the proxy "http://no.such.invalid:3128" cannot be found'),
        ("socks5://127.0.0.1:1", "of a kind that is not supported"),
        ("http://", "is not a URL"),
    ],
)
def test_unusable_proxy_is_named(guest, cfn, heat, proxy, part):
    guest.settings["http_proxy"] = proxy
    guest.run(cfn())
    assert part in guest.failures()[0]
    assert heat.requests == []


ENVIRONMENTS = [
    {},
    {"http_proxy": "http://a:1"},
    {"HTTP_PROXY": "http://a:1"},
    {"http_proxy": "http://a:1", "HTTP_PROXY": "http://b:1"},
    {"http_proxy": "", "HTTP_PROXY": "http://b:1"},
    {"https_proxy": "a:1"},
    {"all_proxy": "http://a:1"},
    {"all_proxy": "http://a:1", "https_proxy": "http://b:2"},
]
PAST = ["", "*", "example.org", ".example.org", "org", "10.0.0.0/8", "10.1.2.3", "10.1.2.4"]
PAST += ["example.org:8000", "a, heat.example.org", "10.0.0.0/33", "x/8", "EXAMPLE.ORG", "::1"]
PAST += ["db8::1", "10.1.2.3:80", "/", "10.0.0.0/0", "eat.example.org"]
URLS = ["http://heat.example.org/", "https://heat.example.org:8000/", "http://10.1.2.3/"]
URLS += ["http://10.1.2.3:80/", "https://[2001:db8::1]/", "http://localhost/", "http://[::1]:1/"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("past", PAST)
def test_proxy_is_that_of_python_requests(monkeypatch, url, past):
    """The agent polls with requests: a signal must get through wherever a poll does."""
    requests = pytest.importorskip("requests", minversion="2.34")
    parts = urlsplit(url)
    for environment in ENVIRONMENTS:
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                if name.lower().endswith("_proxy"):
                    patch.delenv(name)
            for name, value in {**environment, "no_proxy": past}.items():
                patch.setenv(name, value)
            given = requests.utils.get_environ_proxies(url)
            wanted = requests.utils.select_proxy(url, given)
            chosen = proxy.of(parts.scheme, parts.hostname, parts.port)
        if wanted is not None:
            wanted = urlsplit(wanted if "://" in wanted else "http://" + wanted).netloc
        assert (chosen and f"{chosen.host}:{chosen.port}") == wanted, (environment, past)


@pytest.mark.parametrize(
    "url", ["http://proxy", "https://proxy", "http://proxy:1", "https://[::1]"]
)
def test_the_default_port_of_a_proxy_is_that_of_requests(url):
    """requests hands a proxy to urllib3's ProxyManager, which gives it a port by its scheme."""
    urllib3 = pytest.importorskip("urllib3")
    with urllib3.ProxyManager(url) as wanted:
        assert proxy.Proxy(url).port == wanted.proxy.port


ASKS = f"""
import sys
sys.path.insert(0, {HOOKS!r})
from heat_config import transport
transport.preload()
from heat_config import deadline, request
whole = deadline.Deadline(5, 5)
answer = request.send("POST", sys.argv[1], b"{{}}", deadline=whole, trust=request.Trust())
print(answer.status, *sys.modules)
"""


def test_signal_over_plain_http_does_not_load_slow_modules(heat):
    """Each takes a slow guest longer to load than the signal; the runner has those of the agent."""
    done = completed(
        ["/usr/bin/python3", "-IS", "-c", ASKS, heat.url + "/x"], env={"PATH": os.environ["PATH"]}
    )
    status, *loaded = done.stdout.split()
    assert status == "200", done.stderr
    assert not set(loaded) & {"http.client", "email", "ssl", "encodings.idna", "urllib.request"}
    assert len(heat.requests) == 1


LONG = b"x" * ((1 << 20) + 1000)


@pytest.mark.parametrize(
    "answer",
    [
        b"Content-Length: %d\r\n\r\n" % len(LONG) + LONG,
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(LONG) + LONG + b"\r\n0\r\n\r\n",
        b"\r\n" + LONG,
        b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
    ],
    ids=["length", "chunks", "closed", "compressed"],
)
def test_bytes_after_an_accepting_status_are_ignored(guest, heat, cfn, replying, answer):
    def act(handler):
        # The guest hangs up when it has read enough.
        with contextlib.suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + answer)

    replying(act=act)
    done = guest.run(cfn())
    assert done.status == 0, done.log
    assert guest.state_of("d-1") == "signalled"
    assert len(heat.requests) == 1
