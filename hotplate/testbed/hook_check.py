"""A hook of an image, checked against the contract in a guest that runs the image."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hotplate.errors import MachineLostError
from hotplate.events.log import EventLog
from hotplate.guest.shell import Shell
from hotplate.hookkit import image_check
from hotplate.hookkit.contract import LineResult
from hotplate.hookkit.trials import CheckTask
from hotplate.image.inspect import Image
from hotplate.settings import Settings
from hotplate.testbed import warm_state
from hotplate.testbed.boot_images import open_image
from hotplate.testbed.testbed import Testbed
from hotplate.text import clean

#: The time limit of all lines in a guest.
CHECK_SECONDS = 3600.0


def check_in_image(
    path: Path, hook: str, task: CheckTask, settings: Settings
) -> tuple[CheckTask, list[LineResult]]:
    """Check the hook against the contract in a guest that is restored, or booted the first time.

    :param path: the image.
    :param hook: its path in the image, or its group.
    :param task: the check of it.
    :return: the task with the path of the hook in the image, and a result for each line.
    :raises HotplateError: when there is no result; of the kind of its cause.
    """
    task.require_config()
    image = open_image(path, settings)
    place = image_check.PLACE
    with _guest_of(image, settings) as shell:
        shell.copy_in(image_check.bundle(), f"{place}.tar.gz", mode=0o600)
        shell.copy_in(image_check.request(task, hook), f"{place}.json", mode=0o600)
        _say(f'checking the hook of "{task.group}" in the guest; a few minutes when it is emulated')
        done = shell.run(image_check.COMMAND.format(place=place), timeout=CHECK_SECONDS)
    guest_path, results = image_check.read_results(done.rc, done.stdout, done.stderr)
    return replace(task, hook=Path(guest_path)), results


@contextlib.contextmanager
def _guest_of(image: Image, settings: Settings) -> Iterator[Shell]:
    """Restore a server of an image, and yield a root shell in it."""
    with tempfile.TemporaryDirectory(prefix="hotplate-check-") as name:
        directory = Path(name)
        state = warm_state.find_or_make(
            image, settings, directory=directory / "first-boot", say=_say
        )
        testbed = Testbed(
            image,
            settings=state.settings_from(settings),
            directory=directory,
            events=EventLog(),
        )
        with state.in_use(), contextlib.ExitStack() as owned:
            try:
                state.lend_database(directory / "cloud")
                server = state.restore(owned.enter_context(testbed))
            except MachineLostError:
                # The next caller makes it again.
                warm_state.discard(state)
                raise
            yield server.shell()


def _say(text: str) -> None:
    print(clean(text), file=sys.stderr, flush=True)
