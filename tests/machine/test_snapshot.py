"""Saving of a state, whole or not at all; test_machine saves that of a real QEMU."""

import os

import pytest

from hotplate.errors import HostError, MachineLostError
from hotplate.machine import snapshot


class PlayedMonitor:
    """Takes commands as QEMU does, and writes a state to the descriptor that it is handed."""

    def __init__(self, state=b"state"):
        self.state = state
        self.commands = []

    def execute(self, command, *, descriptor=None, **arguments):
        self.commands.append(command)
        if command == "getfd" and "stop" in self.commands:
            os.write(descriptor, self.state)


def test_state_is_saved_of_a_stopped_guest(tmp_path):
    qmp = PlayedMonitor()
    snapshot.save(qmp, tmp_path / "memory", lambda deadline: "completed")
    assert qmp.commands[0] == "stop"
    assert qmp.commands[-1] == "migrate"
    assert (tmp_path / "memory").read_bytes() == b"state"
    assert (tmp_path / "memory").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("state", "status"), [(b"state", "failed"), (b"", "completed")])
def test_incomplete_state_is_removed(tmp_path, state, status):
    with pytest.raises(HostError, match="could not be written"):
        snapshot.save(PlayedMonitor(state), tmp_path / "memory", lambda deadline: status)
    assert list(tmp_path.iterdir()) == []


def test_restored_guest_runs_on(tmp_path):
    (tmp_path / "memory").write_bytes(b"state")
    qmp = PlayedMonitor()
    snapshot.restore(qmp, tmp_path / "memory", lambda deadline: "completed")
    assert qmp.commands[-2:] == ["migrate-incoming", "cont"]


def test_state_of_another_machine_is_refused(tmp_path):
    (tmp_path / "memory").write_bytes(b"state")
    qmp = PlayedMonitor()
    with pytest.raises(MachineLostError, match="does not fit this machine"):
        snapshot.restore(qmp, tmp_path / "memory", lambda deadline: "failed")
    assert "cont" not in qmp.commands


def test_missing_state_is_reported(tmp_path):
    with pytest.raises(MachineLostError, match="cannot be read"):
        snapshot.restore(PlayedMonitor(), tmp_path / "memory", lambda deadline: "completed")
