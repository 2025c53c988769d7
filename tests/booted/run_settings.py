"""The settings of a testbed that a test opens by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hotplate.settings import Settings


def settings_of_this_run(**given: Any) -> Settings:
    """Return settings as the command has them: the environment's, and no file's.

    The lane of the slice gives each guest one processor with ``HOTPLATE_CPUS``; two take a fifth
    more of the host's.

    :param given: what the test chooses by itself, by the setting's name.
    """
    return Settings.load(given, environ=os.environ, directory=Path("/nonexistent"))
