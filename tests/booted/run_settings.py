"""The settings of a testbed that a test opens by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hotplate.settings import Settings


def settings_of_this_run(**given: Any) -> Settings:
    """Return settings as the command has them: the environment's, and no file's.

    :param given: what the test chooses by itself, by the setting's name.
    """
    return Settings.load(given, environ=os.environ, directory=Path("/nonexistent"))
