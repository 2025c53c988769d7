"""``python -m hotplate`` is the ``hotplate`` command."""

from __future__ import annotations

import sys

from hotplate.cli import main

if __name__ == "__main__":
    sys.exit(main())
