"""The plug-in's options: ``--hotplate-image`` and the rest, and short names where free.

A repository may have an ``--image`` of its own, in a conftest.py or by another plug-in. The free
names are known once the initial plug-ins are loaded; so the short names are added after that, and
before pytest's final parsing of the command line.

pytest determines its root directory and configuration before it loads any plug-in, and takes the
value of ``--image web.qcow2`` for a test path then. Such a command line is run again with
``--image=web.qcow2``.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import shlex
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from hotplate.shard import Shard

GROUP = "hotplate"
REQUIRE = "hotplate_require_image"

#: The environment variable with additional command-line words.
VARIABLE = "PYTEST_ADDOPTS"

#: The command line for a second run of pytest, and its environment variable's words.
_JOINED: pytest.StashKey[tuple[list[str], list[str]]] = pytest.StashKey()


@dataclass(frozen=True)
class Option:
    """An option, ``--hotplate-NAME``.

    :param help: for ``pytest --help``.
    :param metavar: of its value; "" for a switch.
    :param many: whether it may be given several times.
    :param short: whether ``--NAME`` does the same when the name is free.
    """

    name: str
    help: str
    metavar: str = ""
    many: bool = False
    short: bool = True

    @property
    def dest(self) -> str:
        """Return its name in the namespace of parsed options."""
        return f"hotplate_{self.name.replace('-', '_')}"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for ``addoption``."""
        if not self.metavar:
            return {"dest": self.dest, "action": "store_true"}
        how = {"action": "append", "default": []} if self.many else {"action": "store"}
        return {"dest": self.dest, "metavar": self.metavar, **how}


OPTIONS = (
    Option(
        "image",
        "the image to test; given several times, each test runs on each",
        "IMAGE",
        many=True,
    ),
    Option(
        "cloud-image",
        "one more image, which the image: of a template picks by this name; may be given several "
        "times",
        "NAME=PATH",
        many=True,
    ),
    Option(
        "require-image",
        "fail when a test needs an image and none is given, instead of skipping the test; also "
        f"as {REQUIRE} in pytest's configuration",
        short=False,
    ),
    Option("cold", "boot for each test, restore nothing"),
    Option(
        "keep",
        "keep the disk of every test, not only of those that failed, and leave its guest up "
        "and print how to look into it, until Enter",
    ),
    Option(
        "pause-on-fail",
        "when a test fails, leave its guest up and print how to look into it, until Enter",
    ),
    Option(
        "allow-backing",
        "follow the names of backing files in an image, and links to its kernel and initrd, out of "
        "the image's directory: the guest can read what they name",
    ),
    Option(
        "lift-limits",
        "take requests that Heat, Keystone, Zaqar and Swift refuse by their defaults because they "
        "are too large, and more servers than Nova's quotas allow",
    ),
    Option(
        "os-cloud",
        "have the servers in this cloud of clouds.yaml, each for one test; what a cloud cannot do "
        "is skipped",
        "NAME",
    ),
    Option("os-flavor", "with --os-cloud, the flavor of the servers (m1.small)", "NAME"),
    Option(
        "os-network",
        "with --os-cloud, the network of the servers; by default the project's only one",
        "NAME",
    ),
    Option("ssh-jump", "with --os-cloud, a jump host for ssh", "[USER@]HOST[:PORT]"),
    Option("ssh-config", "with --os-cloud, how servers are reached, as for ssh -F", "FILE"),
    Option("ssh-user", "with --os-cloud, who logs in to servers", "USER"),
    Option(
        "machine",
        "the kind of machine of the servers, qemu or container: a container shares the host's "
        "kernel and starts in a second (needs root)",
        "KIND",
    ),
    Option(
        "cpu",
        "QEMU's CPU model of the servers, or a level such as x86-64-v2, which an emulated CPU then "
        "has at least",
        "MODEL",
    ),
    Option("artifacts", "where tests leave what they saw", "DIR"),
    Option(
        "keep-runs",
        "remove the folders of earlier runs there but for the newest N; those of runs that still "
        "go on stay",
        "N",
    ),
    Option("shard", "run the M-th of N parts, chosen by the test's name or group", "hash:M/N"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options under their long names."""
    group = parser.getgroup(GROUP, "tests of images that Heat configures")
    for option in OPTIONS:
        group.addoption(f"--hotplate-{option.name}", help=option.help, **option.arguments())
    parser.addini(
        REQUIRE,
        "fail when a test needs an image and none is given, instead of skipping the test",
        type="bool",
        default=False,
    )


@contextlib.contextmanager
def short_names(
    config: pytest.Config, parser: pytest.Parser, args: list[str], environ: Mapping[str, str]
) -> Iterator[None]:
    """Add the short names after the other plug-ins are loaded, which happens in the context.

    :param args: the whole command line; replaced when pytest is to be run again.
    """
    names = _with_value(parser)
    given = config.invocation_params.args
    variable = shlex.split(environ.get(VARIABLE, ""))
    joined = (_joined(given, names), _joined(variable, names))
    if joined != ([*given], variable):
        config.stash[_JOINED] = joined
        # This run loads no conftest of the wrong project, and captures nothing, stdin included;
        # run_again runs the right one.
        args[:] = ["--noconftest", "--capture=no"]
        config.known_args_namespace = parser.parse_known_args(
            args, namespace=copy.copy(config.option)
        )
        yield
        return
    # The value of an unknown option looks like a test path. Only the addopts of a configuration
    # can still contain one.
    places = config.known_args_namespace.file_or_dir
    for word, following in itertools.pairwise(args):
        if word in names and following in places:
            places.remove(following)
    yield
    # By now the other plug-ins and the initial conftest files have added their options.
    group = parser.getgroup(GROUP)
    taken = _names(parser)
    for option in OPTIONS:
        short = f"--{option.name}"
        if option.short and short not in taken:
            group.addoption(short, help=f"as --hotplate-{option.name}", **option.arguments())


def run_again(
    config: pytest.Config, environ: MutableMapping[str, str]
) -> int | pytest.ExitCode | None:
    """Run pytest with each option and its value in one word; return None when not needed."""
    joined = config.stash.get(_JOINED, None)
    if joined is None:
        return None
    words, variable = joined
    # pytest.main() reads the variable once more.
    if variable:
        environ[VARIABLE] = shlex.join(variable)
    return pytest.main(words, plugins=config.invocation_params.plugins)


def _with_value(parser: pytest.Parser) -> set[str]:
    """Return the names of the options with a value, except those of other plug-ins."""
    options = [each for each in OPTIONS if each.metavar]
    shorts = {f"--{each.name}" for each in options if each.short}
    return {f"--hotplate-{each.name}" for each in options} | (shorts - _names(parser))


def _joined(words: Sequence[str], names: Collection[str]) -> list[str]:
    """Return a command line in which each of these options is one word with its value.

    >>> _joined(["-q", "--image", "web.raw", "tests", "--", "--image"], ["--image"])
    ['-q', '--image=web.raw', 'tests', '--', '--image']
    """
    joined: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            return [*joined, word, *left]
        value = next(left, None) if word in names else None
        joined.append(word if value is None else f"{word}={value}")
    return joined


def _names(parser: pytest.Parser) -> set[str]:
    """Return all option names; pytest (8 and 9) has no public way to ask."""
    groups = [*parser._groups, parser._anonymous]
    return {name for group in groups for option in group.options for name in option.names()}


def value(config: pytest.Config, name: str) -> Any:
    """Return the command line's value for an option, by its name in :data:`OPTIONS`."""
    return config.getoption(f"hotplate_{name.replace('-', '_')}")


def shard(config: pytest.Config) -> Shard | None:
    """Return the part to run, or None for all.

    :raises pytest.UsageError: when it is malformed.
    """
    if not (text := value(config, "shard")):
        return None
    try:
        return Shard.parse(text)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def requires_image(config: pytest.Config) -> bool:
    """Return True when a test that needs an image fails without one."""
    return bool(value(config, "require-image") or config.getini(REQUIRE))
