"""A guest without a boot: namespaces of this host, in which a check can reboot."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hotplate.checks import runner
from hotplate.checks.check import CheckResult, UserCheck
from hotplate.checks.metadata import NO_METADATA, of_script
from hotplate.checks.runner import CheckRunner
from hotplate.errors import MachineLostError
from hotplate.guest.base import CommandResult, GuestGoneError, contents, shell_text
from hotplate.timing.deadline import DeadlineExceeded

#: The first process of the namespaces; the kernel ends the others with it, as a reboot does.
INIT = """\
mount -t tmpfs none /run
mkdir /run/guest
mount --bind {root} /run/guest
mount --bind {root}/boot_id /proc/sys/kernel/random/boot_id
mount --bind {root}/var /var/lib
mount --bind {root}/tmp /tmp
echo up
while [ ! -e /run/reboot ] && [ ! -e /run/off ]; do sleep 0.05; done
[ ! -e /run/off ] || touch /run/guest/off
"""

#: Both commands that a check may reboot with; this host's own would be those of this host.
SYSTEMCTL = """\
#!/bin/sh
case "$*" in
    reboot) touch /run/reboot; sleep 60 ;;
    poweroff) touch /run/off; sleep 60 ;;
    *) exit 0 ;;
esac
"""


class LocalGuest:
    """A machine, the connection to it, and the access to that connection."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("var", "tmp", "bin"):
            (root / name).mkdir()
        for name in ("systemctl", "reboot"):
            (root / "bin" / name).write_text(SYSTEMCTL)
            (root / "bin" / name).chmod(0o755)
        self.boots = 0
        self._init: subprocess.Popen[str] | None = None

    @property
    def running(self) -> bool:
        return not (self.root / "off").exists()

    def connect(self, seconds: float) -> LocalGuest:
        if not self.running:
            raise MachineLostError("the machine is off")
        if self._init is None:
            self.boots += 1
            (self.root / "boot_id").write_text(f"{uuid.uuid4()}\n")
            script = INIT.format(root=self.root)
            self._init = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                    *("sh", "-c", script),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._init.stdout is not None
            assert self._init.stdout.readline() == "up\n"
        return self

    def drop(self) -> None:
        if self._init is not None and self._init.poll() is not None:
            self._end()

    def close(self) -> None:
        if self._init is not None:
            self._init.kill()
            self._end()

    def _end(self) -> None:
        assert self._init is not None and self._init.stdout is not None
        self._init.wait()
        self._init.stdout.close()
        self._init = None

    def run(self, command: str | Sequence[str], *, timeout: float = 60) -> CommandResult:
        return self._run(command, timeout, b"")

    def _run(self, command: str | Sequence[str], timeout: float, data: bytes) -> CommandResult:
        assert self._init is not None
        # The child of unshare is the first process of the namespaces.
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        try:
            first = children.read_text().split()[0]
            done = subprocess.run(
                [
                    # --root: a tests' run in a chroot would leave it for the host's own root.
                    *("nsenter", "--mount", "--pid", "--root", "--wd=/", "--target", first, "--"),
                    *("env", "PATH=/run/guest/bin:/usr/bin:/bin", "sh", "-c"),
                    # Without the guest's own commands a reboot would be one of this host.
                    f"test -x /run/guest/bin/systemctl || exit 120; {shell_text(command)}",
                ],
                input=data,
                capture_output=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceeded(str(error)) from error
        except (OSError, IndexError) as error:
            raise GuestGoneError("the guest has gone") from error
        # nsenter cannot enter, or the command was killed with the rest.
        assert done.returncode != 120, "the guest's own commands are not there"
        if done.returncode < 0 or b"nsenter:" in done.stderr:
            raise GuestGoneError("the guest has gone")
        return CommandResult(shell_text(command), done.returncode, done.stdout, done.stderr)

    def copy_in(self, data: bytes | Path, target: str, *, mode: int = 0o644) -> None:
        self._run(
            f"cat >{shlex.quote(target)} && chmod {mode:o} {shlex.quote(target)}",
            60,
            contents(data),
        ).check()

    def copy_out(self, source: str) -> bytes:
        return self.run(["cat", source]).check().stdout


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGuest]:
    monkeypatch.setattr(runner, "_PATH", f"/run/guest/bin:{runner._PATH}")
    (tmp_path / "guest").mkdir()
    with contextlib.closing(LocalGuest(tmp_path / "guest")) as guest:
        yield guest


@pytest.fixture
def run(guest: LocalGuest) -> Callable[..., CheckResult]:
    """Return a function that runs the lines of a shell script as a check in the guest."""
    checks = CheckRunner(guest, memory=1024)

    def run_it(*lines: str, name: str = "check.sh", **more: object) -> CheckResult:
        return checks.run(check_of(*lines, name=name, **more))

    return run_it


def check_of(*lines: str, name: str = "check.sh", **more: object) -> UserCheck:
    program = "\n".join(("#!/bin/sh", *lines, "")).encode()
    metadata = of_script(program, where=name) or NO_METADATA
    return UserCheck(name, name, program, **{"metadata": metadata, **more})  # type: ignore[arg-type]
