"""Settings for a testbed that a test opens directly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hotplate.settings import Settings


def settings_of_this_run(**given: Any) -> Settings:
    """Return the command's settings, from the environment and without a file.

    :param given: the test's own values, by the setting's name.
    """
    return Settings.load(given, environ=os.environ, directory=Path("/nonexistent"))
