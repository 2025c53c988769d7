"""The proxy of a request, by http_proxy, https_proxy, all_proxy and no_proxy.

They are read as python-requests 2.34 does (requests.utils.select_proxy and
should_bypass_proxies): the agent polls with it, and a signal must take the same way as a poll.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Proxy:
    """The proxy of a request: scheme, host, port, and the user's credentials or None."""

    def __init__(self, url: str) -> None:
        from urllib.parse import unquote, urlsplit

        # "proxy:3128" is common, and means http.
        parts = urlsplit(url if "://" in url else "http://" + url)
        if not parts.hostname:
            raise ValueError("not a URL")
        self.scheme = parts.scheme.lower()
        self.host = unquote(parts.hostname)
        self.port = parts.port or (443 if self.scheme == "https" else 80)
        self.credentials = None
        if parts.username is not None:
            self.credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        # For messages: without the user and password.
        self.shown = f"{self.scheme}://{parts.netloc.rpartition('@')[2]}"

    def headers(self) -> dict[str, str]:
        """Return the header that names the user, if there is one."""
        if self.credentials is None:
            return {}
        from base64 import b64encode

        return {"Proxy-Authorization": "Basic " + b64encode(self.credentials.encode()).decode()}


def of(
    scheme: str, host: str, port: int | None, environ: Mapping[str, str] = os.environ
) -> Proxy | None:
    """Return the Proxy for a request to *host* (no brackets), None when there is none.

    port: the URL's, None when it has none. Raises ValueError for a proxy that is no URL.
    """
    named = _named(environ)
    # requests asks for the scheme first, and for all_proxy last.
    url = named.get(scheme) or named.get("all")
    if not url or _is_past(host, port, environ):
        return None
    return Proxy(url)


def _named(environ: Mapping[str, str]) -> dict[str, str]:
    """Return {scheme: URL}; a lower-case name wins, and an empty one removes the other."""
    urls = {}
    names = [name for name in environ if name[-6:].lower() == "_proxy"]
    # False sorts before True: the lower-case names come last and so win, as in urllib's
    # getproxies_environment().
    for name in sorted(names, key=lambda name: name[-6:] == "_proxy"):
        if environ[name]:
            urls[name[:-6].lower()] = environ[name]
        elif name[-6:] == "_proxy":
            urls.pop(name[:-6].lower(), None)
    return urls


def _is_past(host: str, port: int | None, environ: Mapping[str, str]) -> bool:
    """Return whether no_proxy lists *host*: a domain, an address, a network, or ``*`` for all."""
    listed = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    # Only alone, as in urllib's proxy_bypass_environment(); within a list it is no wildcard.
    if listed == "*":
        return True
    host = host.lower()
    address = _ipv4(host)
    # An entry may carry a port ("example.org:8080"), but only for a host name.
    forms = (host,) if address is not None or port is None else (host, f"{host}:{port}")
    for entry in listed.lower().replace(" ", "").split(","):
        name = entry.lstrip(".")
        if name and any(form == name or form.endswith("." + name) for form in forms):
            return True
        if address is not None and _holds(entry, address):
            return True
    return False


def _holds(network: str, address: int) -> bool:
    """Return whether *network*, such as ``10.0.0.0/8``, contains the IPv4 *address*, a number."""
    start, slash, bits = network.partition("/")
    base = _ipv4(start)
    if base is None or not slash or not bits.isdigit() or not 1 <= int(bits) <= 32:
        return False
    # Equal in the first *bits* bits.
    return (base ^ address) >> (32 - int(bits)) == 0


def _ipv4(text: str) -> int | None:
    """Return the number of a dotted IPv4 address, None for anything else."""
    import socket

    try:
        # requests uses inet_aton as well, which also takes short forms such as "10.1".
        return int.from_bytes(socket.inet_aton(text), "big")
    except (OSError, UnicodeError, ValueError):
        return None
