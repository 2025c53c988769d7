#!/usr/bin/python3
"""Start os-collect-config: load it first, then prepare, then run it.

Loading takes seconds on a slow machine.  Done first, it happens while
cloud-init is still running; `prepare` waits for it.  At build time the first
line is changed to the Python that has the agent.
"""

import logging
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import run_phases
import signals
from os_collect_config import collect

CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions have all trusted certificates in one file."""

SIGNED = re.compile(
    r"\?[^\s'\"<>]*?(?:Signature|AWSAccessKeyId|temp_url_sig|X-Amz-Signature)=[^\s'\"<>)]*"
)
"""The query of a signed URL: whoever has it can send the request again."""

PREPARE = Path(__file__).resolve().with_name("prepare")
AGAIN = "--again"
FOREIGN = 78  # as `prepare` has it


def trust_the_system():
    """Let the agent verify servers by the system's certificates, not those of Python's requests.

    A file that does not exist would end the agent at its first request, so none is set then.
    """
    named = os.environ.get("REQUESTS_CA_BUNDLE")
    if named and Path(named).exists():
        return
    if named:
        print(
            f'os-collect-config: REQUESTS_CA_BUNDLE is "{named}", which does not exist; the'
            " system's certificates are used",
            file=sys.stderr,
        )
        del os.environ["REQUESTS_CA_BUNDLE"]
    for path in CERTIFICATES:
        if Path(path).exists():
            os.environ["REQUESTS_CA_BUNDLE"] = path
            return


def unsigned(text):
    """Return `text` without the queries of signed URLs."""
    return SIGNED.sub("?...", text)


def keep_signatures_out_of_logs():
    """Remove the queries of signed URLs from everything that the agent logs.

    Its HTTP library logs the whole URL when a server cannot be reached, and that of a poll never
    expires: whoever may read the journal could fetch the server's metadata, inputs included.
    """
    plain = logging.Handler.format
    logging.Handler.format = lambda handler, record: unsigned(plain(handler, record))

    def report(kind, error, trace):
        print(unsigned("".join(traceback.format_exception(kind, error, trace))), file=sys.stderr)

    sys.excepthook = report


def main():
    """Run `prepare`, then the agent's own main program."""
    trust_the_system()
    keep_signatures_out_of_logs()
    if run_phases.load():
        collect.call_command = run_phases.instead_of(collect.call_command)
    collect.collect_all = signals.after(collect.collect_all)
    words = [word for word in sys.argv[1:] if word != AGAIN]
    if AGAIN not in sys.argv:
        status = subprocess.call([PREPARE])
        if status == FOREIGN:
            return status
        if status:
            print(f"os-collect-config: prepare ended with status {status}", file=sys.stderr)
    # The agent executes this program again whenever its configuration changes.
    sys.argv = [sys.argv[0], AGAIN, *words]
    # In 13.1, which Debian has, the function still has its old name.
    run = getattr(collect, "main", None) or collect.__main__
    return run(["os-collect-config", *words])


if __name__ == "__main__":
    sys.exit(main())
