"""The options of os-collect-config 14.1: their names, kinds and defaults, as data.

An option is ``--group-name`` on the command line, ``name`` in the section ``[group]`` of the
configuration file (with ``_`` for ``-``) and ``OS_GROUP__NAME`` in the environment, as oslo.config
has it.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COLLECTORS = ("heat_local", "ec2", "cfn", "heat", "request", "local", "zaqar")

TEXT = "text"
NUMBER = "number"
BOOLEAN = "boolean"
ADDRESS = "address"
LIST = "list"

#: group: its section. destination: its name in files and in the environment.
Option = namedtuple("Option", "group name kind default short help destination")


def _option(
    group: str,
    name: str,
    kind: str = TEXT,
    default: Any = None,
    *,
    short: str | None = None,
    help: str | None = None,
    destination: str | None = None,
) -> Option:
    return Option(group, name, kind, default, short, help, destination or name.replace("-", "_"))


OPTIONS = (
    _option("DEFAULT", "command", short="c", help="shell command to run when metadata changes"),
    _option(
        "DEFAULT", "cachedir", default="/var/lib/os-collect-config", help="directory of the cache"
    ),
    _option(
        "DEFAULT",
        "backup-cachedir",
        default="/var/run/os-collect-config",
        help="directory for a copy of it",
    ),
    _option("DEFAULT", "collectors", LIST, COLLECTORS, help="a source to use; may be repeated"),
    _option("DEFAULT", "one-time", BOOLEAN, False, help="exit after one run of the command"),
    _option("DEFAULT", "min-polling-interval", NUMBER, 1.0, help="shortest pause, in seconds"),
    _option(
        "DEFAULT", "polling-interval", NUMBER, 30.0, short="i", help="longest pause, in seconds"
    ),
    _option("DEFAULT", "print-cachedir", BOOLEAN, False, help="print cachedir and exit"),
    _option(
        "DEFAULT", "force", BOOLEAN, False, help="run the command even if nothing changed, and exit"
    ),
    _option(
        "DEFAULT",
        "print",
        BOOLEAN,
        False,
        help="print the metadata and exit; run no command",
        destination="print_only",
    ),
    _option(
        "DEFAULT",
        "deployment-key",
        LIST,
        ("deployments",),
        help="key of a list of deployments whose configs become documents; may be repeated",
    ),
    _option(
        "DEFAULT", "splay", NUMBER, 0.0, help="wait up to this many seconds before the first poll"
    ),
    _option("DEFAULT", "debug", BOOLEAN, False, short="d", help="log at DEBUG instead of INFO"),
    _option("DEFAULT", "log-config-append", help="configuration file for Python's logging"),
    _option("DEFAULT", "log-date-format", default="%Y-%m-%d %H:%M:%S", help="for --log-file"),
    _option("DEFAULT", "log-file", help="log to this file instead of standard error"),
    _option("DEFAULT", "log-dir", help="directory of --log-file"),
    _option("DEFAULT", "use-syslog", BOOLEAN, False, help="log to syslog"),
    _option("DEFAULT", "use-journal", BOOLEAN, False, help="log to the systemd journal"),
    _option("DEFAULT", "use-json", BOOLEAN, False, help="log lines are JSON objects"),
    _option("DEFAULT", "syslog-log-facility", default="LOG_USER"),
    _option("ec2", "metadata-url", ADDRESS, "http://169.254.169.254/latest/meta-data"),
    _option("ec2", "timeout", NUMBER, 10.0, help="timeout of one step of a request, in seconds"),
    _option("cfn", "metadata-url", ADDRESS),
    _option("cfn", "heat-metadata-hint", default="/var/lib/heat-cfntools/cfn-metadata-server"),
    _option("cfn", "ca_certificate", help="CA certificate file"),
    _option("cfn", "stack-name"),
    _option("cfn", "path", LIST, (), help="resource.field[.key]; may be repeated"),
    _option("cfn", "secret-access-key"),
    _option("cfn", "access-key-id"),
    _option("cfn", "deployment-key", LIST, ("deployments",)),
    _option("cfn", "timeout", NUMBER, 10.0, help="timeout of one step of a request, in seconds"),
    _option("heat_local", "path", LIST, ("/var/lib/heat-cfntools/cfn-init-data",)),
    _option("local", "path", LIST, ("/var/lib/os-collect-config/local-data",)),
    _option("heat", "user-id"),
    _option("heat", "password"),
    _option("heat", "project-id"),
    _option("heat", "auth-url", ADDRESS),
    _option("heat", "stack-id"),
    _option("heat", "resource-name"),
    _option("heat", "region-name"),
    _option("request", "metadata-url", ADDRESS),
    _option(
        "request", "timeout", NUMBER, 10.0, help="timeout of one step of a request, in seconds"
    ),
    _option("keystone", "cache_dir", help="accepted and ignored: tokens are kept in memory"),
    _option("keystone", "cache_ttl", NUMBER, 1800.0, help="accepted and ignored"),
    _option("zaqar", "user-id"),
    _option("zaqar", "password"),
    _option("zaqar", "project-id"),
    _option("zaqar", "auth-url", ADDRESS),
    _option("zaqar", "queue-id"),
    _option("zaqar", "use-websockets", BOOLEAN, False),
    _option("zaqar", "region-name"),
    # False upstream, where the token and the metadata then use a connection without verification.
    _option("zaqar", "ssl-certificate-validation", BOOLEAN, True),
    _option("zaqar", "ca-file"),
)

GROUPS = tuple(dict.fromkeys(option.group for option in OPTIONS))
#: Other names of options on the command line.
ALIASES = {"log-config-append": ("log-config", "log_config"), "log-dir": ("logdir",)}
ALIASES["log-file"] = ("logfile",)


def flag(option: Option, negated: bool = False) -> str:
    """Return the option's name on the command line."""
    group = "" if option.group == "DEFAULT" else option.group + "-"
    return f"--{group}{'no' if negated else ''}{option.name}"


def variable(option: Option) -> str:
    """Return the option's name in the environment."""
    return f"OS_{option.group.upper()}__{option.destination.upper()}"
