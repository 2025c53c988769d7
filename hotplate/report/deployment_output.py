"""The complete output of each failed deployment, in a file of the artifacts.

The cloud that has it ends with the run, and the last line of a verdict has one line of it.
"""

from __future__ import annotations

import re

from hotplate.report.artifacts import Folder
from hotplate.verdict.hook_output import HookOutput

FOLDER = "deployments"


def file_name(server: str, label: str) -> str:
    """Return the path of a deployment's output, below the run's folder."""
    return "/".join([FOLDER, *(_plain(each) for each in (server, label) if each)]) + ".txt"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:100] or "unnamed"


def write(folder: Folder, output: HookOutput, *, server: str, label: str, group: str) -> None:
    """Write the output of a deployment to its file.

    :param output: without secrets.
    :param server: its name; "" where there is only one.
    :param label: of the deployment.
    """
    of = f" on the server {server}" if server else ""
    text = (
        f"deployment {label} ({group}){of}\n"
        f"deploy_status_code: {output.status_code}\n"
        f"\n== deploy_stderr ==\n{output.stderr.rstrip()}\n"
        f"\n== deploy_stdout ==\n{output.stdout.rstrip()}\n"
    )
    folder.write(file_name(server, label), text)
