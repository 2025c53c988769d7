"""The section "files"."""

from __future__ import annotations

import base64
import binascii
import contextlib
import grp
import json
import os
import pwd
import re
import stat
from typing import Any

from heat_config import directories, files

from heat_cfn import download
from heat_cfn.problems import CfnError
from heat_cfn.step import Changes, Step, as_map, as_name, as_text, kind, number_text

SYMLINK = "120"  # a mode that begins so makes a symbolic link to the path in "content"


def steps(value: Any, where: str) -> list[Step]:
    """Return a step for each file.

    :param value: ``{path: {"content" or "source", "encoding", "owner", "group", "mode"}}``; content
        other than text is written as JSON.
    """
    result = []
    for path, properties in sorted(as_map(value, where).items()):
        label = f"{where}/{path}"
        as_text(path, where)
        if not os.path.isabs(path) or path.endswith("/"):
            raise CfnError(f'"{label}" must be the absolute path of a file')
        result.append(_step(path, as_map(properties, label), label))
    return result


def _step(path: str, entry: dict[str, Any], where: str) -> Step:
    if ("content" in entry) == ("source" in entry):
        raise CfnError(f'"{where}" must have either "content" or "source"')
    for name in ("context", "authentication"):
        if entry.get(name):
            raise CfnError(f'"{where}" uses "{name}", which Heat\'s cfn-init has never supported')
    mode = _mode(entry.get("mode"), where + "/mode")
    owner, group = entry.get("owner"), entry.get("group")
    for name, account in (("owner", owner), ("group", group)):
        if account is not None:
            as_name(number_text(account), f"{where}/{name}")
    source = entry.get("source")
    if source is not None:
        download.check(source, where + "/source")
    if mode is not None and mode.startswith(SYMLINK):
        target = as_text(entry.get("content"), where + "/content")
        return Step(f'files: "{path}"', lambda changes: _link(path, target, changes))
    body = _content(entry, where) if source is None else b""

    def run(changes: Changes) -> None:
        data = download.read(source) if source is not None else body
        bits = int(mode[-4:], 8) if mode is not None else None
        try:
            if _write(path, data, bits, _uid(owner), _gid(group)):
                changes.files.add(os.path.normpath(path))
        except OSError as error:
            raise CfnError(f"it cannot be written: {error.strerror}") from None

    return Step(f'files: "{path}"', run)


def _mode(value: Any, where: str) -> str | None:
    if value is None or value == "":
        return None
    # A bare number is ambiguous: YAML reads 000644 as 420.
    # Six digits begin with the type of the file, as in stat(2): 100644, and 120644 for a link.
    if not isinstance(value, str) or not re.fullmatch(r"(1[02]0|0{0,3})?[0-7]{3,4}", value):
        raise CfnError(f'"{where}" must be a string of octal digits, such as "000644"')
    return value


def _content(entry: dict[str, Any], where: str) -> bytes:
    content = entry["content"]
    encoding = entry.get("encoding") or "plain"
    if encoding not in ("plain", "base64"):
        raise CfnError(f'"{where}/encoding" must be "plain" or "base64"')
    if not isinstance(content, str):
        if encoding == "base64":
            raise CfnError(f'"{where}/content" must be base64 text, not {kind(content)}')
        return (json.dumps(content, indent=4, ensure_ascii=False) + "\n").encode(
            "utf-8", "surrogatepass"
        )
    if encoding == "plain":
        return content.encode("utf-8", "surrogatepass")
    try:
        # Base64 in a template may be wrapped, and validate=True accepts no line break.
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError):
        raise CfnError(f'"{where}/content" is not base64') from None


def _uid(owner: Any) -> int:
    owner = number_text(owner)
    if owner is None:
        return -1
    try:
        return int(owner) if owner.isdigit() else pwd.getpwnam(owner).pw_uid
    except KeyError:
        raise CfnError(f'there is no user "{owner}"') from None


def _gid(group: Any) -> int:
    group = number_text(group)
    if group is None:
        return -1
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise CfnError(f'there is no group "{group}"') from None


def _write(path: str, data: bytes, mode: int | None, uid: int, gid: int) -> bool:
    """Put a whole file in place, or leave the old one; return whether anything changed."""
    parent, name = os.path.split(path)
    # The directory may be another user's, so all is done in it as it was opened.
    directory = directories.open_directory(parent, make=True)
    try:
        old = _status(directory, name)
        if old is not None and stat.S_ISREG(old.st_mode):
            # What the template does not set stays as it is.
            mode = stat.S_IMODE(old.st_mode) if mode is None else mode
            uid = old.st_uid if uid == -1 else uid
            gid = old.st_gid if gid == -1 else gid
            same = (stat.S_IMODE(old.st_mode), old.st_uid, old.st_gid) == (mode, uid, gid)
            if same and old.st_size == len(data) and _read(directory, name) == data:
                return False
        bits = 0o644 if mode is None else mode
        files.write_whole(name, data, bits, owner=(uid, gid), directory=directory)
    finally:
        os.close(directory)
    return True


def _status(directory: int, name: str) -> os.stat_result | None:
    """Return the status of *name* in an open directory, None when it does not exist."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise CfnError("there is a directory of that name")
    return status


def _read(directory: int, name: str) -> bytes:
    # The name may have been replaced since: follow no link, and do not wait for a pipe's writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=directory), "rb") as file:
        return file.read()


def _link(path: str, target: str, changes: Changes) -> None:
    parent, name = os.path.split(path)
    try:
        directory = directories.open_directory(parent, make=True)
        try:
            old = _status(directory, name)
            is_link = old is not None and stat.S_ISLNK(old.st_mode)
            if is_link and os.readlink(name, dir_fd=directory) == target:
                return
            # A link beside it, then a rename: the name is never missing.
            temporary = f".cfn-init-{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            os.symlink(target, temporary, dir_fd=directory)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise CfnError(f"the link cannot be made: {error.strerror}") from None
    changes.files.add(os.path.normpath(path))
