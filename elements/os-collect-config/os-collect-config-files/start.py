#!/usr/bin/python3
"""Start os-collect-config: load it first, then prepare, then run it.

Loading takes seconds on a slow machine.  Done first, it happens while
cloud-init is still at work; `prepare` waits for that.  At build time the
first line is made to name the Python that has the agent.
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
"""The query of a URL that is signed: who has it can send the request again."""

PREPARE = Path(__file__).resolve().with_name("prepare")
AGAIN = "--again"
FOREIGN = 78  # as `prepare` has it


def trust_the_system():
    """Let the agent verify servers by the system's certificates, not those of Python's requests.

    A file that is not there ends the agent at its first request, so that none is named then.
    """
    named = os.environ.get("REQUESTS_CA_BUNDLE")
    if named and Path(named).exists():
        return
    if named:
        print(
            f'os-collect-config: REQUESTS_CA_BUNDLE is "{named}", which is not there; the'
            " certificates of the system are used",
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
    """Take the queries of signed URLs out of everything that the agent says.

    Its HTTP library names the whole URL when a server cannot be reached, and nothing in that of a
    poll expires: who may read the journal could ask for the server's metadata and its inputs.
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
    # The agent executes this again whenever its configuration changes.
    sys.argv = [sys.argv[0], AGAIN, *words]
    # Debian's 13.1 has the name that it had before 14.
    run = getattr(collect, "main", None) or collect.__main__
    return run(["os-collect-config", *words])


if __name__ == "__main__":
    sys.exit(main())
