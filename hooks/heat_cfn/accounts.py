"""The sections "groups" and "users"."""

from __future__ import annotations

import grp
import pwd
from functools import partial
from typing import Any

from heat_cfn import run
from heat_cfn.problems import CfnError
from heat_cfn.step import Changes, Step, as_list, as_map, as_name, as_text, number_text


def group_steps(value: Any, where: str) -> list[Step]:
    """Return a step for each group: ``{name: {"gid": "45"}}``, sorted by name."""
    steps = []
    for name, properties in sorted(as_map(value, where).items()):
        as_name(name, where)
        label = f"{where}/{name}"
        gid = _number(as_map(properties, label).get("gid"), label + "/gid")
        steps.append(Step(f'groups: "{name}"', partial(_group, name, gid)))
    return steps


def user_steps(value: Any, where: str) -> list[Step]:
    """Return a step for each user: ``{name: {"uid", "groups", "homeDir"}}``, sorted by name."""
    steps = []
    for name, properties in sorted(as_map(value, where).items()):
        as_name(name, where)
        label = f"{where}/{name}"
        entry = as_map(properties, label)
        uid = _number(entry.get("uid"), label + "/uid")
        groups = as_list(entry.get("groups"), label + "/groups")
        home = entry.get("homeDir")
        if home is not None:
            as_text(home, label + "/homeDir")
        steps.append(Step(f'users: "{name}"', partial(_user, name, uid, groups, home)))
    return steps


def _number(value: Any, where: str) -> str | None:
    text = number_text(value)
    if text is None or text == "":
        return None
    if not isinstance(text, str) or not text.isdigit():
        raise CfnError(f'"{where}" must be a number')
    return text


def _group(name: str, gid: str | None, _changes: Changes) -> None:
    try:
        existing = grp.getgrnam(name)
    except KeyError:
        run.do(["groupadd"] + (["--gid", gid] if gid else []) + [name])
        return
    if gid and existing.gr_gid != int(gid):
        run.do(["groupmod", "--gid", gid, name])


def _user(
    name: str, uid: str | None, groups: list[str], home: str | None, _changes: Changes
) -> None:
    options = []
    try:
        existing = pwd.getpwnam(name)
    except KeyError:
        options += ["--uid", uid] if uid else []
        options += ["--home-dir", home] if home else []
        options += ["--groups", ",".join(groups)] if groups else []
        # CloudFormation's users are for services: they cannot log in.
        run.do(["useradd", "--shell", "/sbin/nologin", *options, name])
        return
    options += ["--uid", uid] if uid and existing.pw_uid != int(uid) else []
    options += ["--home", home] if home and existing.pw_dir != home else []
    missing = [group for group in groups if not _belongs(name, existing.pw_gid, group)]
    # Without --append, usermod would remove the user from all other groups.
    options += ["--append", "--groups", ",".join(missing)] if missing else []
    if options:
        run.do(["usermod", *options, name])


def _belongs(user: str, primary: int, group: str) -> bool:
    try:
        entry = grp.getgrgid(int(group)) if group.isdigit() else grp.getgrnam(group)
    except KeyError:
        return False
    # A group does not list the users whose primary group it is.
    return entry.gr_gid == primary or user in entry.gr_mem
