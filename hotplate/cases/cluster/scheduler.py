"""The address of a Dask scheduler, as in ``--on`` and ``hotplate worker``."""

from __future__ import annotations

import importlib.util
import logging
import re
import socket
import warnings

from hotplate.errors import UsageError

CONNECT_SECONDS = 10.0
"""The time limit of one attempt to reach a scheduler."""

EXTRA = "pip install 'hotplate[dask]'"

_ADDRESS = re.compile(r"(dask|tcp|tls)://([^/\s]+):(\d{1,5})/?")


def address_of(text: str) -> str:
    """Return the address of a scheduler in Dask's form.

    :param text: ``tcp://HOST:PORT`` or ``tls://HOST:PORT``, as a scheduler prints it;
        ``dask://`` means ``tls`` when Dask's configuration has a certificate for clients.
    :raises UsageError: when it is malformed, or the extra is not installed.

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
    """Check that the extra is installed, without importing it.

    :raises UsageError: when it is not.
    """
    if importlib.util.find_spec("distributed") is None:
        raise UsageError('the package "distributed" (Dask) is not installed', hint=EXTRA)


def warning(address: str) -> str:
    """Return the warning about an unencrypted connection; "" for an encrypted one."""
    if address.startswith("tls://"):
        return ""
    return (
        f'the connection to "{address}" is not encrypted, and whoever reaches the scheduler or a '
        "worker runs programs on the workers; with TLS they need a certificate "
        '(see "TLS" in docs/cluster.rst)'
    )


def own_address(address: str) -> str:
    """Return this host's address towards a scheduler, for a worker to listen on.

    :param address: of the scheduler, see :func:`address_of`.
    :raises OSError: when the scheduler does not answer.
    """
    host, _, port = address.partition("://")[2].rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as reached:
        own = str(reached.getsockname()[0])
    return f"[{own}]" if ":" in own else own


def hush() -> None:
    """Keep Dask's own log off the terminal: important events are reported in sentences.

    Only the versions of hotplate have to be equal, not those of other packages.
    """
    from distributed.versions import VersionMismatchWarning

    warnings.simplefilter("ignore", VersionMismatchWarning)
    for name in ("distributed", "distributed.client", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _has_certificate() -> bool:
    """Return True when Dask is configured (``distributed.comm.tls``) with a client certificate."""
    import dask.config
    import distributed  # noqa: F401 - it loads the configuration

    return bool(dask.config.get("distributed.comm.tls.client.cert", None))
