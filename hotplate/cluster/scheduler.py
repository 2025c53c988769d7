"""The address of a Dask scheduler, as ``--on`` and ``hotplate worker`` take it."""

from __future__ import annotations

import importlib.util
import logging
import re
import socket
import warnings

from hotplate.errors import UsageError

CONNECT_SECONDS = 10.0
"""For one try to reach a scheduler."""

EXTRA = "pip install 'hotplate[dask]'"

_ADDRESS = re.compile(r"(dask|tcp|tls)://([^/\s]+):(\d{1,5})/?")


def address_of(text: str) -> str:
    """Return the address of a scheduler as Dask takes it.

    :param text: ``tcp://HOST:PORT`` or ``tls://HOST:PORT``, as a scheduler prints it; with
        ``dask://`` it is ``tls`` where Dask's configuration has a certificate for clients.
    :raises UsageError: when it is not of that form, or the extra is not installed.

    >>> address_of("tcp://10.0.0.1:8786")
    'tcp://10.0.0.1:8786'
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 65536:
        raise UsageError(
            f'"{text}" is no address of a Dask scheduler',
            hint="dask://HOST:PORT, or tcp:// or tls:// as the scheduler prints it",
        )
    require_extra()
    scheme = match[1]
    if scheme == "dask":
        scheme = "tls" if _has_certificate() else "tcp"
    return f"{scheme}://{match[2]}:{match[3]}"


def require_extra() -> None:
    """Look for what the extra installs, without loading it.

    :raises UsageError: when it is not there.
    """
    if importlib.util.find_spec("distributed") is None:
        raise UsageError('the package "distributed" (Dask) is not installed', hint=EXTRA)


def warning(address: str) -> str:
    """Return what is to be said of a connection that is not encrypted; "" for one that is."""
    if address.startswith("tls://"):
        return ""
    return (
        f'the connection to "{address}" is not encrypted, and whoever reaches the scheduler or a '
        "worker runs programs on the workers; with TLS they need a certificate "
        '(see "TLS" in docs/cluster.rst)'
    )


def own_address(address: str) -> str:
    """Return this host's address on the way to a scheduler, as a worker is told to listen on it.

    :param address: of the scheduler, see :func:`address_of`.
    :raises OSError: when nobody answers there.
    """
    host, _, port = address.partition("://")[2].rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as reached:
        own = str(reached.getsockname()[0])
    return f"[{own}]" if ":" in own else own


def hush() -> None:
    """Keep Dask's own log off the terminal: what matters of it is said in sentences.

    Versions of hotplate have to be the same, and no other package's.
    """
    from distributed.versions import VersionMismatchWarning

    warnings.simplefilter("ignore", VersionMismatchWarning)
    for name in ("distributed", "distributed.client", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _has_certificate() -> bool:
    """Whether Dask's configuration (``distributed.comm.tls``) has a client's certificate."""
    import dask.config
    import distributed  # noqa: F401 - it brings the configuration

    return bool(dask.config.get("distributed.comm.tls.client.cert", None))
