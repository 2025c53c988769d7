"""OpenStack's Swift as one process on loopback: proxy with tempauth, its S3, and TLS.

Run by a Python with the package ``swift``: ``swift_server.py FOLDER CERT KEY``. Prints its port
and serves until its standard input ends.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from typing import Any

import eventlet

eventlet.monkey_patch()

from eventlet import wsgi  # noqa: E402

HOST = "127.0.0.1"
KINDS = ("account", "container", "object")

CONF = """\
[swift-hash]
swift_hash_path_suffix = of-the-tests
[storage-policy:0]
name = one
default = yes
"""

BACKEND = """\
[DEFAULT]
devices = {folder}/devices
mount_check = false
disable_fallocate = true
swift_dir = {folder}
bind_port = {port}
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""

PROXY = """\
[DEFAULT]
swift_dir = {folder}
bind_port = {port}
[pipeline:main]
pipeline = catch_errors gatekeeper own_cache s3api tempauth proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:own_cache]
paste.filter_factory = swift_server:own_cache
[filter:s3api]
use = egg:swift#s3api
[filter:tempauth]
use = egg:swift#tempauth
storage_url_scheme = https
user_test_tester = testing .admin
"""


class Memory:
    """A replacement for memcached in this process, for Swift."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def get(self, key: str, **_: object) -> Any:
        return self._kept.get(key)

    def set(self, key: str, value: Any, **_: object) -> None:
        # JSON has no tuples, and would return a list.
        self._kept[key] = list(value) if isinstance(value, tuple) else value

    def incr(self, key: str, delta: int = 1, **_: object) -> int:
        self._kept[key] = self._kept.get(key, 0) + delta
        return int(self._kept[key])

    def delete(self, key: str, **_: object) -> None:
        self._kept.pop(key, None)


def own_cache(_conf: object, **_: object) -> Any:
    """Return a filter that gives each request the memory (paste.deploy)."""
    memory = Memory()

    def wrap(app: Any) -> Any:
        def serve(environ: dict[str, Any], start_response: Any) -> Any:
            environ["swift.cache"] = memory
            return app(environ, start_response)

        return serve

    return wrap


def main() -> None:
    folder, cert, key = (Path(each) for each in sys.argv[1:])
    (folder / "swift.conf").write_text(CONF)
    listeners = {kind: eventlet.listen((HOST, 0)) for kind in (*KINDS, "proxy")}
    ports = {kind: each.getsockname()[1] for kind, each in listeners.items()}

    from swift.common import utils
    from swift.common.http_protocol import SwiftHttpProtocol
    from swift.common.ring import RingData
    from swift.common.wsgi import loadapp

    utils.set_swift_dir(str(folder))
    for kind in KINDS:
        # One device with all partitions.
        device = {"id": 0, "zone": 1, "region": 1, "weight": 1.0, "meta": "", "device": "disk"}
        place = {"ip": HOST, "port": ports[kind]}
        place |= {"replication_ip": HOST, "replication_port": ports[kind]}
        ring = RingData([array("H", [0, 0])], [{**device, **place}], 31)
        ring.save(str(folder / f"{kind}.ring.gz"))
    (folder / "devices" / "disk").mkdir(parents=True)
    listeners["proxy"] = eventlet.wrap_ssl(
        listeners["proxy"], certfile=str(cert), keyfile=str(key), server_side=True
    )
    sys.modules["swift_server"] = sys.modules["__main__"]
    for kind, listener in listeners.items():
        conf = folder / f"{kind}.conf"
        text = PROXY if kind == "proxy" else BACKEND
        conf.write_text(text.format(folder=folder, kind=kind, port=ports[kind]))
        eventlet.spawn(
            wsgi.server,
            listener,
            loadapp(str(conf)),
            log_output=False,
            protocol=SwiftHttpProtocol,
            capitalize_response_headers=False,
        )
    print(ports["proxy"], flush=True)
    eventlet.tpool.execute(sys.stdin.read)


if __name__ == "__main__":
    main()
