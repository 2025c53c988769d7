"""The signal that all phases succeeded, for templates older than software deployments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import completed

SCRIPT = (
    Path(__file__).resolve().parents[3]
    / "elements/os-refresh-config/os-refresh-config/post-configure.d/99-refresh-completed"
)


class Guest:
    """A tree in place of /, and the collected documents."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "var/lib/os-collect-config").mkdir(parents=True)

    def run(
        self, *documents: object, flags: tuple[str, ...] = (), **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run the script after these documents were collected, in this order."""
        names = []
        for number, document in enumerate(documents):
            path = self.root / f"{number}.json"
            path.write_text(document if isinstance(document, str) else json.dumps(document))
            names.append(str(path))
        return completed(
            [sys.executable, "-IS", *flags, SCRIPT],
            env={
                "PATH": os.environ["PATH"],
                "HEAT_AGENT_ROOT": str(self.root),
                "OS_CONFIG_FILES": ":".join([*names, "/nowhere/x.json"]),
                **environment,
            },
        )


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


def test_both_kinds_of_address_are_signalled_once(guest: Guest, server) -> None:
    """The verbs and the body are those of tripleo-image-elements' script of this name."""
    ec2 = {"instance-id": "i-00000001", "completion-handle": "overruled"}
    heat = {
        "completion-handle": f"{server.url}/v1/waitcondition/x?Signature=PLANTED",
        "completion-signal": f"{server.url}/v1/signal/y?Signature=PLANTED",
    }
    for _ in range(2):
        done = guest.run(ec2, "no json", heat)
        assert done.returncode == 0, done.stderr
        assert "PLANTED" not in done.stdout + done.stderr
    assert [(heard.method, heard.path.partition("?")[0]) for heard in server.requests] == [
        ("PUT", "/v1/waitcondition/x"),
        ("POST", "/v1/signal/y"),
    ]
    for heard in server.requests:
        assert heard.headers["Content-Type"] == "application/json"
        assert heard.path.endswith("?Signature=PLANTED")
        assert json.loads(heard.body) == {
            "Status": "SUCCESS",
            "Reason": "Configuration Complete",
            "UniqueId": "i-00000001",
            "Data": "Finished os-refresh-config.",
        }
    guest.run(ec2, {"completion-handle": f"{server.url}/another"})
    assert server.requests[-1].path == "/another"


@pytest.mark.parametrize("documents", [(), ({},), ([1],), ({"completion-handle": ""},)])
def test_metadata_without_an_address_is_not_signalled(guest: Guest, documents: tuple) -> None:
    done = guest.run(*documents)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_instance_is_named_without_the_ec2_collector(guest: Guest, server) -> None:
    """Upstream's script then did nothing in silence, and the template waited."""
    (guest.root / "var/lib/cloud/data").mkdir(parents=True)
    (guest.root / "var/lib/cloud/data/instance-id").write_text("uuid-1\n")
    assert guest.run({"completion-handle": server.url}).returncode == 0
    assert json.loads(server.requests[-1].body)["UniqueId"] == "uuid-1"


@pytest.mark.parametrize(("answer", "status"), [(503, 1), (429, 1), (404, 0), (403, 0), (302, 0)])
def test_refusal_is_named_and_only_a_temporary_one_retried(
    guest: Guest, server, answer: int, status: int
) -> None:
    server.answers = [(answer, b"", {"Location": f"{server.url}/elsewhere"}), (200, b"")]
    document = {"completion-signal": f"{server.url}/x?Signature=PLANTED"}
    done = guest.run(document)
    assert done.returncode == status
    assert f"no signal to completion-signal '{server.url}/x': it answered {answer}" in done.stderr
    assert ("tried again" in done.stderr) == bool(status)
    assert "PLANTED" not in done.stderr
    assert guest.run(document).returncode == 0
    assert len(server.requests) == 2


@pytest.mark.parametrize("bad", [7, ["x"], "no address", "file:///etc/passwd", "http://[::1", "x:"])
def test_malformed_address_is_named_and_final(guest: Guest, bad: object) -> None:
    done = guest.run({"completion-handle": bad})
    assert done.returncode == 0
    assert done.stderr.startswith("99-refresh-completed: ")
    assert "Traceback" not in done.stderr


def test_refused_connection_is_retried(guest: Guest) -> None:
    done = guest.run({"completion-handle": "http://127.0.0.1:9/x?Signature=PLANTED"})
    assert done.returncode == 1
    assert "Connection refused; it will be tried again" in done.stderr
    assert "PLANTED" not in done.stderr


def test_slow_modules_are_not_imported_without_an_address(guest: Guest) -> None:
    """The script runs after each change, and most metadata has no such address."""
    done = guest.run({"instance-id": "i-1"}, flags=("-X", "importtime"))
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "json" in imported
    assert not imported & {"pathlib", "urllib", "hashlib", "socket"}
