"""A stub of cinc-client, chef-client and chef-solo, which no package index has.

The tests put it on PATH under one of those names. It follows Chef Infra Client 18.11.21 and Cinc
Client 18.5.21 in local mode, each row tried beside the real programs: options and their errors,
the settings of client.rb, how a run list is read, the places of the node and the cache, the
attributes that are kept, exit codes, output, the licence.

A recipe is ``cookbooks/<name>/recipes/<recipe>.rb``, and here it is Python. It sees ``node`` (the
attributes), ``environment``, ``file_cache_path``, ``os`` and

* ``file(path, content, sensitive=False)``: Chef's ``file`` resource, whose diff is printed at every
  log level;
* ``Reboot``, ``RebootPending``, ``RebootFailed``: exceptions that end Chef with 35, 37 and 41.

Any other exception ends with 1, SystemExit too; ``os._exit`` is Ruby's ``Process.exit!``.
"""

import json
import os
import re
import shutil
import signal
import sys
import traceback
from pathlib import Path

EXIT_BAD_CONFIG = 43
EXIT_NO_LICENSE = 172
STRING = re.compile(r"'((?:[^'\\]|\\.)*)'\Z")
NODE_NAME = re.compile(r"[\-\w:.]+\Z", re.ASCII)
ENVIRONMENT = re.compile(r"[\-\w]+\Z", re.ASCII)
RECIPE = re.compile(r"recipe\[([^\]@]+)(?:@[0-9]+(?:\.[0-9]+){1,2})?\]\Z")
ROLE = re.compile(r"role\[([^\]]+)\]\Z")
VERSIONED = re.compile(r"([^@]+)@[0-9]+(?:\.[0-9]+){1,2}\Z")
VERSIONS = {"cinc": "Cinc Client: 18.5.21", "chef": "Chef Infra Client: 18.11.21"}


class Reboot(Exception):
    """Chef::Exceptions::Reboot and its kin."""

    status = 35


class RebootPending(Reboot):
    """A reboot is needed first."""

    status = 37


class RebootFailed(Reboot):
    """A reboot could not be made."""

    status = 41


def fatal(message, status=1):
    """Print *message* as Chef does, on stdout, and end."""
    print(f"[2026-01-02T03:04:05+00:00] FATAL: {message}")
    sys.exit(status)


def parse_arguments(words):
    """Return the options of ``chef-solo --help`` that matter here, as a map."""
    with_value = {
        **dict.fromkeys(("-c", "--config"), "config"),
        **dict.fromkeys(("-j", "--json-attributes"), "attributes"),
        **dict.fromkeys(("-N", "--node-name"), "node_name"),
        **dict.fromkeys(("-E", "--environment"), "environment"),
        **dict.fromkeys(("-l", "--log_level"), "log_level"),
        "--chef-license": "license",
    }
    options = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in with_value and rest:
            options[with_value[word]] = rest.pop(0)
        elif word in ("-z", "--local-mode"):
            options["local"] = True
        elif word == "--version":
            options["version"] = True
        else:
            sys.stderr.write(
                "/opt/parser.rb:1787:in `complete_rescue_invalid_option': invalid option: "
                f"{word} (OptionParser::InvalidOption)\n"
            )
            sys.exit(1)
    return options


def parse_config(path):
    """Return client.rb as {name: value}, as Ruby reads the lines that the hook may write.

    A setting that Chef does not know is ignored, and so is a missing file.
    """
    config = {}
    if path is None or not Path(path).is_file():
        return config
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        name, _, value = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        quoted = STRING.match(value)
        if quoted:
            config[name] = re.sub(r"\\([\\'])", r"\1", quoted.group(1))
        elif re.match(r":[a-z]+\Z|true\Z|false\Z|STDOUT\Z", value):
            config[name] = value
        else:
            fatal(f"client.rb:{number}: syntax error, unexpected {value!r}", EXIT_BAD_CONFIG)
    return config


def is_wrapper(name):
    """Return True when the program is cinc-wrapper under a name of Chef's."""
    return name.startswith("chef") and bool(os.environ.get("STAND_IN_CINC_WRAPPER"))


def check_license(name, options, config):
    """Stop Chef's own programs without an acceptance; Cinc's never ask."""
    if name.startswith("cinc") or is_wrapper(name):
        return
    given = options.get("license") or os.environ.get("CHEF_LICENSE") or config.get("chef_license")
    if given not in ("accept", "accept-silent", "accept-no-persist"):
        print("Chef Infra Client cannot execute without accepting the license")
        sys.exit(EXIT_NO_LICENSE)


def read_attributes(path):
    """Return the attributes in the file of ``-j``."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:
        fatal(f"Cannot load configuration from {path}")
    try:
        return json.loads(text)
    except ValueError:
        fatal(
            f"Could not parse the provided JSON file ({path})!: parse error: trailing garbage",
        )


def take_run_list(attributes):
    """Remove the run list, and other keys with a meaning to Chef, from the attributes."""
    if "recipes" in attributes and "run_list" in attributes:
        fatal("Chef::Exceptions::AmbiguousRunlistSpecification: both recipes and run_list are set")
    if "policy_name" in attributes and "policy_group" in attributes:
        fatal("Error loading policyfile from `policies/'")
    given = attributes.pop("run_list", [])
    return [given] if isinstance(given, str) else given


def merge(node, attributes):
    """Merge attributes into a node's as Chef does with those of ``-j``: maps into maps."""
    for name, value in attributes.items():
        if isinstance(value, dict) and isinstance(node.get(name), dict):
            merge(node[name], value)
        else:
            node[name] = value


def main():
    """Converge."""
    # The real program continues when asked to end in mid-converge.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    options = parse_arguments(sys.argv[1:])
    name = Path(sys.argv[0]).name
    if options.get("version"):
        print(VERSIONS[name[:4]])
        return
    if is_wrapper(name):
        sys.stderr.write("Redirecting to cinc-client\n")
    config = parse_config(options.get("config"))
    check_license(name, options, config)
    if not (options.get("local") or name.endswith("solo")):
        fatal("no server: this is not local mode")
    node_name = options.get("node_name") or config.get("node_name") or "localhost"
    if not NODE_NAME.match(node_name):
        fatal(
            f"Chef::Exceptions::ValidationFailed: Property name's value {node_name} does not "
            r"match regular expression /^[\-[:alnum:]_:.]+$/"
        )
    sys.exit(Client(options, config, node_name).run())


class Client:
    """One converge."""

    def __init__(self, options, config, node_name):
        self.config = config
        self.attributes = read_attributes(options["attributes"])
        self.run_list = take_run_list(self.attributes)
        self.environment = options.get("environment") or config.get("environment", "_default")
        beside = Path(options.get("config") or "/var/chef/x").parent / "local-mode-cache"
        self.root = Path(config.get("cache_path") or beside)
        self.cache = Path(config.get("file_cache_path") or self.root / "cache")
        self.node_name = node_name
        self.saved = Path(config.get("node_path") or "/var/chef/nodes") / f"{node_name}.json"

    def run(self):
        """Converge, save the node, and return the exit status."""
        self.cache.mkdir(parents=True, exist_ok=True)
        (self.root / "backup").mkdir(exist_ok=True)
        (self.cache / "chef_guid").write_text("b0a5a5a2-0000-4000-8000-000000000000")
        pid = self.cache / "chef-client-running.pid"
        pid.write_text(str(os.getpid()))
        node = {}
        if self.saved.exists():
            node = json.loads(self.saved.read_text(encoding="utf-8"))["normal"]
        node.setdefault("tags", [])
        merge(node, self.attributes)
        if self.config.get("log_level") in (":debug", ":trace"):
            for _ in range(3):
                print(f"DEBUG: Applying attributes: {json.dumps(self.attributes)}")
        print("INFO: Started Cinc Zero at chefzero://localhost:1 with repository at /")
        self.check_environment()
        status = 0
        # A recipe runs in "/", wherever Chef was started.
        os.chdir("/")
        try:
            for recipe in list(self.expand(self.run_list)):
                self.converge(recipe, node)
        except Reboot as stop:
            status = stop.status
        except BaseException as error:
            (self.cache / "chef-stacktrace.out").write_text(traceback.format_exc())
            print(f"FATAL: {type(error).__name__}: {error}")
            status = 1
        self.save(node)
        return status

    def check_environment(self):
        """Check that the environment has a name that Chef accepts, and a file."""
        if self.environment == "_default":
            return
        if not ENVIRONMENT.match(self.environment):
            fatal(
                "Chef::Exceptions::ValidationFailed: Property chef_environment's value "
                f"{self.environment} does not match regular expression /^[\\-[:alnum:]_]+$/"
            )
        folder = Path(self.config["environment_path"])
        if not any((folder / f"{self.environment}{end}").is_file() for end in (".json", ".rb")):
            fatal('Net::HTTPServerException: 404 "Not Found"')

    def expand(self, run_list):
        """Return the recipes of a run list, roles replaced by theirs."""
        for item in run_list:
            if match := RECIPE.match(item) or VERSIONED.match(item):
                yield match.group(1)
            elif match := ROLE.match(item):
                yield from self.expand(self.role(match.group(1)))
            elif re.search(r"[\[\]]", item):
                raise ValueError(
                    "ArgumentError: Unable to create Chef::RunList::RunListItem from "
                    f'String:"{item}": must be recipe[] or role[]'
                )
            else:
                yield item

    def role(self, name):
        """Return the run list of a role, which is JSON or Ruby."""
        folder = Path(self.config["role_path"])
        if (folder / f"{name}.json").is_file():
            return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["run_list"]
        if (folder / f"{name}.rb").is_file():
            text = (folder / f"{name}.rb").read_text(encoding="utf-8")
            return re.findall(r"\w+\[[^\]]*\]", text.partition("run_list")[2])
        raise LookupError(
            f"Chef::Exceptions::MissingRole: The expanded run list includes nonexistent "
            f"roles: {name}"
        )

    def converge(self, item, node):
        """Run one recipe."""
        cookbook, _, recipe = item.partition("::")
        folder = Path(self.config["cookbook_path"]) / cookbook / "recipes"
        path = folder / f"{recipe or 'default'}.rb"
        if not path.is_file():
            raise LookupError('Net::HTTPServerException: 412 "Precondition Failed"')
        source = compile(path.read_text(encoding="utf-8"), str(path), "exec")
        names = {
            "node": node,
            "environment": self.environment,
            "file_cache_path": str(self.cache),
            "file": self.file,
            "Reboot": Reboot,
            "RebootPending": RebootPending,
            "RebootFailed": RebootFailed,
            "os": os,
        }
        exec(source, names)
        print(f"INFO: converged {item}")

    def file(self, path, content, sensitive=False):
        """Do Chef's ``file``: the content, a diff on stdout, the former content in the backups."""
        if Path(path).exists():
            backup = Path(f"{self.root}/backup{path}.chef-20260102030405.000000")
            backup.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, backup)
        Path(path).write_text(content, encoding="utf-8")
        diff = "suppressed sensitive resource" if sensitive else content
        print("\n".join(f"    +{line}" for line in diff.splitlines()))

    def save(self, node):
        """Save the node as Chef does, with its facts about the server."""
        self.saved.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "name": self.node_name,
            "chef_environment": self.environment,
            "json_class": "Chef::Node",
            "automatic": {"platform": "x" * 155_000},
            "normal": node,
            "chef_type": "node",
            "default": {},
            "override": {},
            "run_list": self.run_list,
        }
        self.saved.write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main()
