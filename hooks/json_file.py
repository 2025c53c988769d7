#!/usr/bin/python3 -IS
"""Heat hook "json-file": the config maps absolute paths to data; write each as a JSON file."""

from __future__ import annotations

import json
import os
import re
import stat
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import directories, files, hook, tools, values


def wanted_mode(deployment: hook.Deployment) -> int | None:
    """Return the option "mode" (octal text, as "0644") as a number, None when it is not given."""
    given = deployment.options.get("mode")
    if given is None:
        return None
    text = values.text(given)
    if not re.match(r"0?[0-7]{3}\Z", text):
        raise hook.HookError(
            'The option "mode" must be text of three or four octal digits, for instance "0644".'
        )
    return int(text, 8)


def check(path: str) -> None:
    """Raise HookError when no file can be written at *path*."""
    shown = values.encode(values.clean(path))
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise hook.HookError(
            f"{shown} is not the absolute path of a file, and nothing was written. A config of "
            'group "json-file" maps paths such as "/etc/app.json" to data.'
        )
    try:
        directory, name = directories.open_parent(path)
    except FileNotFoundError:  # write() makes missing directories
        return
    except OSError as error:
        raise hook.HookError(
            f"{shown} cannot be written: {error.strerror}; nothing was written."
        ) from None
    try:
        status = existing(directory, name)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise hook.HookError(f"{shown} exists and is not a file; nothing was written.")
    finally:
        os.close(directory)


def existing(directory: int, name: str) -> os.stat_result | None:
    """Return the status of *name* in an open directory, None when it does not exist."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def umask() -> int:
    """Return this process's umask, which is that of the agent's unit."""
    # There is no call that only reads the umask.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write(path: str, text: str, mode: int | None) -> None:
    """Replace *path*; keep mode and owner of an existing file, else the umask decides.

    The owner of the directory may put another file or a link in the way at any time, so all is
    done in the directory as it was opened, and to the new file before it has its name.
    """
    directory, name = directories.open_parent(path, make=True)
    try:
        old = existing(directory, name)
        if old is not None and not stat.S_ISREG(old.st_mode):
            old = None  # put there since the check; it is replaced
        if mode is None:
            mode = old.st_mode & 0o777 if old else 0o666 & ~umask()
        owner = (old.st_uid, old.st_gid) if old else None
        files.write_whole(name, text, mode, owner=owner, directory=directory)
    finally:
        os.close(directory)


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Check every path, then write every file."""
    mode = wanted_mode(deployment)
    config = tools.map_config(deployment)
    for path in config:
        check(path)
    for path, data in config.items():
        text = json.dumps(data, indent=4, sort_keys=True, separators=(",", ": "))
        try:
            write(path, text, mode)
        except OSError as error:
            raise hook.HookError(
                f"{values.encode(values.clean(path))} cannot be written: {error.strerror}."
            ) from None
    return hook.Response()
