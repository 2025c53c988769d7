"""Parse a URL for a request, and format one without its secrets."""

from __future__ import annotations

PORTS = {"http": 80, "https": 443}


class Target:
    """A parsed URL: *host* to connect to, *name* for the certificate, *path* with the query.

    Surrounding blanks are dropped and characters beyond ASCII are encoded, as python-requests does.
    Raises ValueError for anything that is not a URL.
    """

    def __init__(self, url: object) -> None:
        from urllib.parse import quote, unquote, urlsplit

        if not isinstance(url, str):
            raise ValueError("not a URL")
        url = url.strip()
        _refuse_blanks(url)
        # urlsplit removes line ends and tabs inside a URL without a word, so they are refused
        # before it.
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError("not a URL")
        self.scheme = parts.scheme
        self.named_port = parts.port
        self.port = parts.port or PORTS[parts.scheme]
        # A zone is written "%25eth0" (RFC 6874) and is meaningful on this machine only.
        self.host = unquote(parts.hostname)
        if not self.host.isascii():
            self.host = self.host.encode("idna").decode("ascii")
        # The host goes into the request's head: refuse "%0d%0a", and what IDNA turns into a blank.
        _refuse_blanks(self.host)
        # Neither a certificate nor a Host header names a zone.
        self.name = self.host.partition("%")[0]
        authority = f"[{self.name}]" if ":" in self.name else self.name
        self.connect_to = f"{authority}:{self.port}"
        # The Host header omits a port that is the scheme's own.
        self.authority = authority if self.port == PORTS[parts.scheme] else self.connect_to
        # The fragment is dropped: it is no part of a request. "%" is safe, so that text which is
        # quoted already, such as a signature, stays as it is.
        path = (parts.path or "/") + ("?" + parts.query if parts.query else "")
        self.path = quote(path, safe="!#$%&'()*+,/:;=?@[]~", errors="strict")
        self.whole = f"{self.scheme}://{self.authority}{self.path}"


def _refuse_blanks(text: str) -> None:
    if any(c <= " " or c == "\x7f" for c in text):
        raise ValueError("not a URL")


def redacted(url: object) -> str:
    """Return *url* without its query, which is the signature, and without a user and password."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(str(url))
    except ValueError:
        return "(a URL that cannot be read)"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
