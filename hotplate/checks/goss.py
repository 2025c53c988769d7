"""The tests of a goss file as results, one each.

The format is that of ``goss validate --format json``, which goss 0.3 and 0.4 share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hotplate.checks.check import CheckResult, CheckStatus
from hotplate.errors import UsageError

#: The bytes of goss's document; each test has some hundred.
DOCUMENT_BYTES = 8 << 20

#: goss's exit status 1 is that of a failed test; 126 and 127 are the shell's.
_CANNOT_RUN = ("status 126", "status 127")


def results(done: CheckResult, *, file: str) -> list[CheckResult]:
    """Return the results of a goss file's tests.

    :param done: the result of the program itself; its output is the document.
    :param file: the goss file, for the sentences.
    :raises UsageError: when goss refuses the file, or cannot run in the guest.
    """
    document = _document(done.output)
    if document is None:
        if "status" not in done.reason:
            # It was killed, or the guest has gone: no fault of the file.
            return [done]
        words = " ".join(done.output.split())[-400:] or done.reason
        if done.reason.endswith(_CANNOT_RUN):
            raise UsageError(
                f"the goss program cannot run in the guest: {words}",
                hint="--goss-program names one for the guest's processor",
            )
        raise UsageError(f'goss refuses the file "{file}": {words}')
    return [_result(each) for each in document["results"]]


def _document(output: str) -> dict[str, Any] | None:
    """Return the document in an output, None when there is none; log lines may stand before it."""
    start = 0 if output.startswith("{") else output.find("\n{") + 1
    try:
        document, _ = json.JSONDecoder().raw_decode(output, start)
    except ValueError:
        return None
    is_one = isinstance(document, dict) and isinstance(document.get("results"), list)
    return document if is_one else None


def _result(test: Mapping[str, Any]) -> CheckResult:
    name = ": ".join(str(test.get(key, "")) for key in ("resource-type", "resource-id", "property"))
    line = " ".join(str(test.get("summary-line") or "").split())
    status, reason = CheckStatus.FAILED, line.removeprefix(f"{name}: ")
    if test.get("skipped") or test.get("result") == 2:
        status, reason = CheckStatus.SKIPPED, "goss skipped it"
    elif test.get("successful") is True:
        status, reason = CheckStatus.PASSED, ""
    # Nanoseconds.
    seconds = float(test.get("duration") or 0) / 1e9
    return CheckResult(
        f"goss: {name}", status, seconds, reason, str(test.get("summary-line") or "")
    )
