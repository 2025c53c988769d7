"""Options, logs and exit statuses of the ``cfn-*`` commands."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from heat_cfn import metadata
from heat_cfn.problems import CfnError

LOGS = "/var/log"


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return an option parser for the command ``name``."""
    return argparse.ArgumentParser(prog=name, description=description, allow_abbrev=False)


def add_source_options(options: argparse.ArgumentParser) -> None:
    """Add the options that select a resource's metadata and describe the access to Heat."""
    options.add_argument("-s", "--stack", metavar="NAME", help="the stack's name")
    options.add_argument("-r", "--resource", metavar="NAME", help="the resource's logical name")
    options.add_argument("--access-key", metavar="KEY", help="EC2 access key")
    options.add_argument("--secret-key", metavar="KEY", help="EC2 secret key")
    options.add_argument(
        "-f",
        "--credential-file",
        metavar="FILE",
        help="file with AWSAccessKeyId= and AWSSecretKey=, instead of the two keys",
    )
    options.add_argument(
        "--region", metavar="NAME", help="accepted as CloudFormation does; Heat ignores it"
    )
    options.add_argument(
        "-u",
        "--url",
        metavar="URL",
        help=f"Heat's cfn API; default: what is in {metadata.state_path('cfn-metadata-server')}",
    )
    options.add_argument("-v", "--verbose", action="store_true", help=argparse.SUPPRESS)


def find(arguments: Any) -> Any:
    """Return the metadata that the options select; from Heat if there are keys, else from disk."""
    keys: metadata.Credentials | None = None
    if arguments.credential_file:
        keys = metadata.credentials_from(arguments.credential_file)
    elif arguments.access_key and arguments.secret_key:
        keys = metadata.Credentials(arguments.access_key, arguments.secret_key)
    elif arguments.access_key or arguments.secret_key:
        raise CfnError("--access-key and --secret-key must be given together")
    if keys is None:
        return metadata.kept(arguments.resource)
    if not arguments.stack or not arguments.resource:
        raise CfnError("to ask Heat, --stack and --resource are needed too")
    document = metadata.describe(arguments.stack, arguments.resource, keys, arguments.url)
    # For cfn-hup, which compares with the resource's own copy, and for a cfn-init without keys.
    metadata.keep(document, arguments.resource)
    metadata.keep(document, None)
    return document


def note(program: str, message: str) -> None:
    """Add a line to the command's log, readable by root alone; never with a value in it."""
    path = os.path.join(os.environ.get("HEAT_CFN_LOG_DIR", LOGS), program + ".log")
    line = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + message + "\n"
    # No link: root must not write where another user points it.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError:
        return  # an unwritable log stops no command
    try:
        os.write(descriptor, line.encode("utf-8", "replace"))
    # A full disk stops no command either.
    except OSError:
        pass
    finally:
        os.close(descriptor)


def run(program: str, action: Callable[[], int]) -> int:
    """Run a command; a failure becomes one sentence on stderr and exit status 1."""
    # An error may quote text that the encoding of the terminal does not have.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        return action()
    except CfnError as error:
        message = f"{program}: {error}"
        print(message, file=sys.stderr, flush=True)
        note(program, str(error))
        return 1
    except KeyboardInterrupt:
        # As a shell reports SIGINT: 128 + 2.
        return 130
