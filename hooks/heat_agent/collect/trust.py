"""The trusted certificates."""

from __future__ import annotations

import os

from .problems import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from typing import Any

#: The files in which distributions keep all trusted certificates.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

#: The variables that python-requests reads a bundle from, in its order.
VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Trust:
    """Make TLS contexts with the system's certificates, or those that the environment names.

    private: a file of additional certificates (``ca_file`` of /etc/heat-config.conf), or None.
    """

    def __init__(self, environ: Mapping[str, str], private: str | None = None) -> None:
        self._environ = environ
        self._private = private
        self._contexts: dict[tuple[str | None, bool], ssl.SSLContext] = {}

    def context(self, ca_file: str | None = None, *, verify: bool = True) -> ssl.SSLContext:
        """Return a context. Raises Unavailable if a file cannot be read.

        ca_file: from a source's own option; replaces all others, as upstream does.
        """
        key = (ca_file, verify)
        if key not in self._contexts:
            self._contexts[key] = self._make(ca_file, verify)
        return self._contexts[key]

    def _make(self, ca_file: str | None, verify: bool) -> ssl.SSLContext:
        import ssl  # takes a while on a slow guest; many polls are plain HTTP

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        named = ca_file or self._named()
        if named:
            _load(context, named)
            return context
        context.load_default_certs()
        if not context.get_ca_certs() and not _has_directory(ssl):
            # A Python that is not the distribution's may look in the wrong place.
            bundle = next(filter(os.path.exists, BUNDLES), None)
            if bundle:
                _load(context, bundle)
        if self._private:
            _load(context, self._private)
        return context

    def _named(self) -> str | None:
        for variable in VARIABLES:
            path = self._environ.get(variable)
            # A missing file is ignored; python-requests would fail in every request.
            if path and os.path.exists(path):
                return path
        return None


def _has_directory(ssl: Any) -> bool:
    """Return whether OpenSSL looks certificates up in a directory, and so loads none in advance."""
    path = ssl.get_default_verify_paths().capath
    try:
        return bool(path) and any(name.endswith(".0") for name in os.listdir(path))
    except OSError:
        return False


def _load(context: ssl.SSLContext, path: str) -> None:
    try:
        if os.path.isdir(path):
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except (OSError, ValueError):  # ssl.SSLError is an OSError
        raise Unavailable(f'the CA file "{path}" cannot be read') from None
