"""The sections "groups" and "users"."""

import grp
import pwd
from typing import Any, List, Optional

from heat_cfn import run
from heat_cfn.problems import CfnError
from heat_cfn.step import Step, as_list, as_map, as_name, as_text, number_text


def group_steps(value: Any, where: str) -> List[Step]:
    """Return a step for each group: ``{name: {"gid": "45"}}``, sorted by name."""
    steps = []
    for name, properties in sorted(as_map(value, where).items()):
        as_name(name, where)
        label = "%s/%s" % (where, name)
        gid = _number(as_map(properties, label).get("gid"), label + "/gid")
        steps.append(Step('groups: "%s"' % name, lambda _, name=name, gid=gid: _group(name, gid)))
    return steps


def user_steps(value: Any, where: str) -> List[Step]:
    """Return a step for each user: ``{name: {"uid", "groups", "homeDir"}}``, sorted by name."""
    steps = []
    for name, properties in sorted(as_map(value, where).items()):
        as_name(name, where)
        label = "%s/%s" % (where, name)
        entry = as_map(properties, label)
        uid = _number(entry.get("uid"), label + "/uid")
        groups = as_list(entry.get("groups"), label + "/groups")
        home = entry.get("homeDir")
        if home is not None:
            as_text(home, label + "/homeDir")
        steps.append(
            Step(
                'users: "%s"' % name,
                lambda _, name=name, uid=uid, groups=groups, home=home: _user(
                    name, uid, groups, home
                ),
            )
        )
    return steps


def _number(value: Any, where: str) -> Optional[str]:
    text = number_text(value)
    if text is None or text == "":
        return None
    if not isinstance(text, str) or not text.isdigit():
        raise CfnError('"%s" must be a number' % where)
    return text


def _group(name: str, gid: Optional[str]) -> None:
    try:
        existing = grp.getgrnam(name)
    except KeyError:
        run.do(["groupadd"] + (["--gid", gid] if gid else []) + [name])
        return
    if gid and existing.gr_gid != int(gid):
        run.do(["groupmod", "--gid", gid, name])


def _user(name: str, uid: Optional[str], groups: List[str], home: Optional[str]) -> None:
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
    options += ["--append", "--groups", ",".join(missing)] if missing else []
    if options:
        run.do(["usermod", *options, name])


def _belongs(user: str, primary: int, group: str) -> bool:
    try:
        entry = grp.getgrgid(int(group)) if group.isdigit() else grp.getgrnam(group)
    except KeyError:
        return False
    return entry.gr_gid == primary or user in entry.gr_mem
