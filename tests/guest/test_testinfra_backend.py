"""Commands that testinfra sends to a guest, kept few because each takes an emulated guest long."""

from __future__ import annotations

from hotplate.guest import testinfra_backend
from hotplate.guest.base import CommandResult

RELEASE = 'NAME="Debian"\nID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'


class Played:
    """A guest with an answer for each command; any other command fails."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.commands: list[str] = []

    def run(self, command: str, *, timeout: float) -> CommandResult:
        self.commands.append(command)
        output = self.answers.get(command)
        return CommandResult(command, 0 if output is not None else 1, (output or "").encode(), b"")


def test_system_is_queried_with_one_command() -> None:
    guest = Played({testinfra_backend.KERNEL_AND_RELEASE: f"Linux x86_64\n{RELEASE}"})
    system = testinfra_backend.testinfra_host(lambda: guest).system_info
    assert (system.type, system.arch) == ("linux", "x86_64")
    assert (system.distribution, system.release, system.codename) == ("debian", "12", "bookworm")
    assert guest.commands == [testinfra_backend.KERNEL_AND_RELEASE]


def test_system_without_os_release_is_queried_by_testinfra() -> None:
    guest = Played(
        {
            "uname -s": "Linux\n",
            "uname -m": "aarch64\n",
            "cat /etc/redhat-release": "CentOS release 6.10 (Final)\n",
        }
    )
    system = testinfra_backend.testinfra_host(lambda: guest).system_info
    assert (system.distribution, system.release, system.arch) == ("CentOS", "6.10", "aarch64")


def test_prefetched_answer_serves_only_the_next_question() -> None:
    guest = Played({testinfra_backend.KERNEL_AND_RELEASE: f"Linux x86_64\n{RELEASE}", "true": ""})
    host = testinfra_backend.testinfra_host(lambda: guest)
    assert host.run("uname -s").stdout == "Linux\n"
    assert host.run("true").rc == 0
    guest.answers["cat /etc/os-release"] = "ID=changed\n"
    assert host.run("cat /etc/os-release").stdout == "ID=changed\n"
