"""A stand-in for cinc-client, chef-client and chef-solo, which no package index has.

The tests put it on PATH under one of those names. It keeps to what was seen of Chef 18 and Cinc
18 in local mode: which options there are, what client.rb may say, where the node is saved and
what is remembered of it, the exit codes, that failures are told on stdout, the licence.

A recipe is ``cookbooks/<name>/recipes/<recipe>.rb``, and here it is Python: it sees ``node`` (the
attributes), ``environment`` and ``os``, prints, and may raise SystemExit(code).
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

EXIT_BAD_CONFIG = 43
EXIT_NO_LICENSE = 172
STRING = re.compile(r"'((?:[^'\\]|\\.)*)'\Z")
KNOWN = {
    "chef_license",
    "chef_zero.enabled",
    "cookbook_path",
    "environment",
    "environment_path",
    "local_mode",
    "log_level",
    "log_location",
    "node_name",
    "node_path",
    "role_path",
}


def fatal(message, status=1):
    """Say *message* as Chef does, on stdout, and end."""
    print(f"[2026-01-02T03:04:05+00:00] FATAL: {message}")
    sys.exit(status)


def parse_arguments():
    """The options of ``chef-solo --help`` that matter here; an unknown one ends with status 1."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("-c", "--config")
    parser.add_argument("-j", "--json-attributes")
    parser.add_argument("-z", "--local-mode", action="store_true")
    parser.add_argument("-N", "--node-name")
    parser.add_argument("-E", "--environment")
    parser.add_argument("-l", "--log_level")
    parser.add_argument("--chef-license")
    parser.add_argument("--version", action="store_true")
    try:
        arguments, unknown = parser.parse_known_args()
    except argparse.ArgumentError as error:
        fatal(error)
    if unknown:
        print(f"Error: invalid option: {unknown[0]}")
        sys.exit(1)
    return arguments


def parse_config(path):
    """client.rb as {name: value}: what the Ruby parser would make of the lines we may write."""
    config = {}
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
        if name not in KNOWN:
            fatal(f"client.rb:{number}: unknown setting {name}", EXIT_BAD_CONFIG)
    return config


def check_license(name, arguments, config):
    """Chef's own programs stop when nobody accepted; Cinc's never ask."""
    if name.startswith("cinc"):
        return
    given = arguments.chef_license or os.environ.get("CHEF_LICENSE") or config.get("chef_license")
    if given not in ("accept", "accept-silent", "accept-no-persist"):
        print("Chef Infra Client cannot execute without accepting the license")
        sys.exit(EXIT_NO_LICENSE)


def main():
    """Converge."""
    arguments = parse_arguments()
    if arguments.version:
        print(os.environ.get("STAND_IN_VERSION", "Cinc Client: 18.5.21"))
        return
    config = parse_config(arguments.config) if arguments.config else {}
    name = Path(sys.argv[0]).name
    check_license(name, arguments, config)
    if not (arguments.local_mode or name.endswith("solo")):
        fatal("no server: this is not local mode")

    nodes = Path(config["node_path"])
    given = Path(arguments.json_attributes)
    try:
        attributes = json.loads(given.read_text(encoding="utf-8"))
    except OSError:
        fatal(f"Cannot load configuration from {given}")
    except ValueError:
        fatal(f"Could not parse the provided JSON file ({given})!: trailing garbage")
    node_name = arguments.node_name or config["node_name"]
    saved = nodes / f"{node_name}.json"
    node = {}
    if saved.exists():
        node = json.loads(saved.read_text(encoding="utf-8"))["normal"]
    run_list = attributes.pop("run_list", [])
    node.update(attributes)

    level = config.get("log_level", ":auto")
    if level in (":debug", ":trace"):
        for _ in range(3):
            print(f"DEBUG: Applying attributes: {json.dumps(attributes)}")
    print("INFO: Started Cinc Zero at chefzero://localhost:1 with repository at /")
    environment = arguments.environment or config.get("environment", "_default")
    if environment != "_default":
        file = Path(config["environment_path"]) / f"{environment}.json"
        if not file.is_file():
            fatal(f"Net::HTTPServerException: 404 environment {environment!r}")

    status = 0
    try:
        for item in expand(run_list, config):
            converge(item, config, node, environment)
    except SystemExit as stop:
        status = stop.code
    except Exception as error:
        print(f"FATAL: {type(error).__name__}: {error}")
        status = 1
    nodes.mkdir(parents=True, exist_ok=True)
    with saved.open("r+" if saved.exists() else "w", encoding="utf-8") as file:
        file.write(json.dumps({"name": node_name, "normal": node, "automatic": "x" * 155_000}))
    sys.exit(status)


def expand(run_list, config):
    """The recipes of a run list, roles replaced by theirs."""
    for item in run_list:
        match = re.match(r"(?:(recipe|role)\[)?([\w:.-]+)\]?\Z", item)
        if match is None:
            fatal(f"Unable to create Chef::RunList::RunListItem from {item!r}")
        if match.group(1) == "role":
            role = Path(config["role_path"]) / f"{match.group(2)}.json"
            yield from expand(json.loads(role.read_text(encoding="utf-8"))["run_list"], config)
        else:
            yield match.group(2)


def converge(item, config, node, environment):
    """Run one recipe."""
    cookbook, _, recipe = item.partition("::")
    file = Path(config["cookbook_path"]) / cookbook / "recipes" / f"{recipe or 'default'}.rb"
    if not file.is_file():
        fatal(f"Net::HTTPClientException: 412 no such cookbook {cookbook}")
    source = compile(file.read_text(encoding="utf-8"), str(file), "exec")
    exec(source, {"node": node, "environment": environment, "os": os})
    print(f"INFO: converged {item}")


if __name__ == "__main__":
    main()
