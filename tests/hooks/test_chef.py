"""The chef hook, with a stub of Chef that checks the known parts of its contract."""

import json
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from programs import program

from hotplate.hookkit import lines, run

from .conftest import EVERY_TYPE

STAND_IN = Path(__file__).with_name("chef_stand_in.py")
WRITE = "open(os.environ['heat_outputs_path'] + '.{}', 'w').write({})\n"


class Kitchen:
    """A folder of cookbooks, roles and environments, that may become a git repository."""

    def __init__(self, path: Path):
        self.path = path

    def recipe(self, source: str, name: str = "demo", recipe: str = "default") -> None:
        """Add a recipe, in the form that chef_stand_in describes."""
        self.file(f"cookbooks/{name}/recipes/{recipe}.rb", source)

    def file(self, name: str, text: str) -> None:
        """Add any file."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self) -> str:
        """Commit everything and return the repository's URL."""
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(self.path)]
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "x", "--allow-empty"], check=True)
        return f"file://{self.path}"


@pytest.fixture
def install(tmp_path: Path):
    """Put the stub into a folder of programs under a name; return the folder."""

    def put(name: str) -> Path:
        text = f"#!{sys.executable}\n{STAND_IN.read_text()}"
        return program(tmp_path / "bin" / name, text).parent

    return put


@pytest.fixture
def bare_chef(hook_of, tmp_path: Path):
    """Run the chef hook with no Chef but the one in the folder of programs."""
    return hook_of(
        "chef",
        HEAT_CHEF_WORKING=tmp_path / "work",
        HEAT_CHEF_OUTPUTS=tmp_path / "out",
        PATH=f"{tmp_path}/bin:/usr/bin:/bin",
    )


@pytest.fixture
def chef(bare_chef, install):
    """Run the chef hook with the stub as cinc-client; keywords go to make_deployment."""
    install("cinc-client")
    return bare_chef


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    """The kitchen at the default place."""
    return Kitchen(tmp_path / "work" / "kitchen")


def test_inputs_of_every_json_type_are_attributes(chef, kitchen):
    kitchen.recipe("import json\n" + WRITE.format("result", "json.dumps(node)"))
    answer = chef('["recipe[demo]"]', inputs=EVERY_TYPE, outputs=["result", "absent"])
    assert answer.status == 0, answer.stdout + answer.stderr
    # Chef itself gives each node its tags.
    assert json.loads(answer.outputs.pop("result")) == EVERY_TYPE | {"tags": []}
    assert answer.outputs == {}


@pytest.mark.defect("K11")
def test_neither_credentials_nor_derived_inputs_are_attributes(chef, kitchen):
    kitchen.recipe("print(sorted(node))")
    secret = ("auth_url", "username", "user_id", "password", "project_id", "region_name")
    secret += ("queue_id", "signal_id", "signal_verb")
    inputs = {f"deploy_{name}": "planted" for name in secret} | {"deploy_mine": 1, "other": 2}
    answer = chef(["demo"], inputs=inputs)
    assert "['deploy_mine', 'other', 'tags']" in answer.stdout


def test_roles_environment_and_the_group_chef_solo_are_used(chef, kitchen):
    kitchen.recipe("print(environment, sorted(node))", recipe="other")
    kitchen.file("roles/web.json", '{"run_list": ["recipe[demo::other]"]}')
    kitchen.file("roles/db.rb", 'name "db"\nrun_list "recipe[demo::other]"\n')
    kitchen.file("environments/staging_2.rb", 'name "staging_2"\n')
    items = ["role[web]", "role[db]", "recipe[demo::other@0.1.0]"]
    answer = chef(items, inputs={"environment": "staging_2"}, group="chef-solo")
    assert answer.status == 0, answer.stdout
    assert answer.stdout.count("staging_2 ['tags']") == 3


def test_environment_with_a_name_that_chef_refuses_fails(chef, kitchen):
    """As with Chef 18.11.21 and heat-agents: Chef checks the name."""
    kitchen.file("environments/it's.json", "{}")
    answer = chef([], inputs={"environment": "it's"})
    assert answer.status == 1
    assert "ValidationFailed" in answer.stdout


@pytest.mark.parametrize(
    "value", ["x'\nFile.write('/evil', '')\n'", "'; system('x') #", "#{1}", "\\"], ids=repr
)
def test_environment_is_never_run_as_ruby(chef, kitchen, value):
    answer = chef([], inputs={"environment": value})
    assert answer.status in (1, 43)  # no such environment; a line break cannot be in a name
    assert "Traceback" not in answer.stdout


def test_kitchen_path_may_have_a_quote(chef, tmp_path: Path):
    other = Kitchen(tmp_path / "it's")
    other.recipe("print('from', 'there')")
    answer = chef(["demo"], options={"kitchen_path": str(other.path)})
    assert answer.status == 0, answer.stdout
    assert "from there" in answer.stdout


@pytest.mark.defect("H9", "K9")
def test_shorter_deployment_replaces_a_longer_one(chef, kitchen, tmp_path: Path):
    kitchen.recipe("print(environment, sorted(node))")
    kitchen.file("environments/prod.json", "{}")
    first = chef(["demo"], inputs={"environment": "prod", "a": "x" * 5000, "b": 1}, id="same")
    second = chef(["demo"], inputs={"a": 1}, id="same", action="UPDATE")
    third = chef(["demo"], inputs={"a": 1})
    assert [first.status, second.status, third.status] == [0, 0, 0], second.stdout
    assert "prod ['a', 'b', 'tags']" in first.stdout
    assert "_default ['a', 'tags']" in second.stdout


def test_attributes_are_removed_afterwards_and_files_private(chef, kitchen, tmp_path: Path):
    kitchen.recipe(
        "import glob\n"
        f"for f in glob.glob({str(tmp_path / 'work' / '.runs')!r} + '/the-id/*.*'): "
        "print(oct(os.stat(f).st_mode)[-3:])"
    )
    answer = chef(["demo"], inputs={"secret": "planted"}, id="the-id")
    assert answer.stdout.split().count("600") == 2
    assert b"planted" not in answer.raw
    assert "planted" not in answer.log
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"planted" not in path.read_bytes()
    assert not (tmp_path / "work" / ".runs").exists()
    nodes = tmp_path / "work" / ".nodes"
    assert stat.S_IMODE(nodes.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in nodes.iterdir()} == {0o600}


def test_node_attributes_set_by_recipes_are_kept(chef, kitchen, tmp_path: Path):
    """node.normal counts 1, 2, 3 over deployments with heat-agents' hook and Chef 18.11.21."""
    kitchen.recipe(
        "node['count'] = node.get('count', 0) + 1\n"
        "node['app']['seen'] = node['app'].get('seen', 0) + 1\n"
        + WRITE.format("result", "f\"{node['count']} {node['app']['seen']} {node['tags']}\"")
    )
    results = [
        chef(["demo"], inputs={"app": {"secret": f"planted{n}"}}, outputs=["result"]).outputs
        for n in range(3)
    ]
    assert [each["result"] for each in results] == ["1 1 []", "2 2 []", "3 3 []"]
    assert not any(
        b"planted" in path.read_bytes() for path in (tmp_path / "work").rglob("*") if path.is_file()
    )


def test_dropped_input_does_not_come_back(chef, kitchen):
    kitchen.recipe("print(sorted(node), node.get('app'))")
    chef(["demo"], inputs={"a": 1, "app": {"x": 1, "y": {"z": 2}}})
    assert "['app', 'tags'] {'x': 1}" in chef(["demo"], inputs={"app": {"x": 1}}).stdout


def test_cache_is_shared_by_all_deployments(chef, kitchen, tmp_path: Path):
    """Chef's cache is where heat-agents has it, so downloads are kept and backups rotate."""
    kitchen.recipe(
        "print('CACHE', file_cache_path)\n"
        "path = file_cache_path + '/download'\n"
        "print('THERE', os.path.exists(path))\n"
        "open(path, 'w').write('x')\n"
    )
    answers = [chef(["demo"]) for _ in range(3)]
    cache = tmp_path / "work" / "local-mode-cache" / "cache"
    assert all(f"CACHE {cache}" in each.stdout for each in answers)
    assert ["THERE True" in each.stdout for each in answers] == [False, True, True]
    assert [path.name for path in (tmp_path / "work").iterdir() if path.name[0] != "."].count(
        "local-mode-cache"
    ) == 1


def test_node_has_the_name_that_chef_gives_it(chef, kitchen, tmp_path: Path):
    """As with heat-agents; `hostname -f` may return a name that Chef refuses for a node."""
    program(tmp_path / "bin" / "hostname", "echo '(none)'")
    answer = chef([])
    assert answer.status == 0, answer.stdout
    assert [path.name for path in (tmp_path / "work" / ".nodes").iterdir()] == ["localhost.json"]


def test_files_of_a_killed_run_are_removed_by_the_next(chef, kitchen, tmp_path: Path):
    left = tmp_path / "work" / ".runs" / "killed"
    left.mkdir(parents=True)
    (left / "attributes.json").write_text('{"secret": "planted"}')
    assert chef([], id="another").status == 0
    assert not left.exists()


def test_diffs_show_inputs_unless_the_recipe_is_sensitive(chef, kitchen, tmp_path: Path):
    """Chef does so at every log level, as the element's README explains."""
    source = f"file('{tmp_path}/f', node['secret'], sensitive=node['hidden'])"
    kitchen.recipe(source)
    for level in ("fatal", "info"):
        shown = chef(
            ["demo"], inputs={"secret": "x", "hidden": False}, options={"log_level": level}
        )
        assert "    +x" in shown.stdout
    hidden = chef(["demo"], inputs={"secret": "x", "hidden": True})
    assert "    +x" not in hidden.stdout


def test_debug_is_off_unless_asked_for(chef, kitchen):
    assert "DEBUG" not in chef([], inputs={"a": 1}).stdout
    assert "DEBUG" in chef([], inputs={"a": 1}, options={"log_level": "debug"}).stdout
    refused = chef([], options={"log_level": "info\nsystem('x')"})
    assert refused.status == 1
    assert "log_level" in refused.stderr


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not on this host")
class TestClonedKitchen:
    """The option kitchen."""

    def test_kitchen_is_cloned_afresh_for_every_deployment(self, chef, tmp_path: Path):
        source = Kitchen(tmp_path / "repository")
        source.recipe("print('one')")
        options = {"kitchen": source.commit()}
        first = chef(["demo"], options=options)
        source.recipe("print('two')")
        source.commit()
        second = chef(["demo"], options=options)
        third = chef(["demo"], action="UPDATE", options=options)
        assert [a.status for a in (first, second, third)] == [0, 0, 0], second.stderr
        assert "one" in first.stdout
        assert "two" in second.stdout
        assert "two" in chef(["demo"]).stdout

    def test_failing_clone_keeps_the_old_and_hides_the_password(self, chef, tmp_path: Path):
        Kitchen(tmp_path / "work" / "kitchen").recipe("print('old')")
        Kitchen(tmp_path / "work" / "kitchen").commit()
        url = "https://user:planted@127.0.0.1:1/kitchen.git"
        answer = chef(["demo"], options={"kitchen": url})
        assert answer.status not in (0, 127)
        assert "could not be cloned" in answer.stderr
        assert "planted" not in answer.stderr + answer.log
        assert "old" in chef(["demo"]).stdout

    def test_url_is_no_option_of_git(self, chef, tmp_path: Path):
        answer = chef(["demo"], options={"kitchen": f"--upload-pack=touch {tmp_path}/evil"})
        assert answer.status != 0
        assert not (tmp_path / "evil").exists()

    def test_directory_that_is_no_clone_is_not_replaced(self, chef, kitchen):
        kitchen.recipe("print('precious')")
        answer = chef(["demo"], options={"kitchen": "file:///somewhere"})
        assert answer.status == 1
        assert "not a git clone" in answer.stderr
        assert "precious" in chef(["demo"]).stdout

    def test_missing_git_is_reported(self, chef, tmp_path: Path):
        env = {"PATH": f"{tmp_path}/bin"}
        answer = chef(["demo"], options={"kitchen": "file:///somewhere"}, env=env)
        assert answer.status == 127
        assert '"git" was not found' in answer.stderr


@pytest.mark.parametrize(
    ("code", "sentence", "recipe"),
    [
        (35, "reboot", "raise Reboot()"),
        (37, "rebooted first", "raise RebootPending()"),
        (41, "could not reboot", "raise RebootFailed()"),
        (213, "another version", "os._exit(213)"),
    ],
)
def test_exit_codes_with_a_meaning_are_explained(chef, kitchen, code, sentence, recipe):
    kitchen.recipe(recipe)
    answer = chef(["demo"])
    assert answer.status == code
    assert sentence in answer.stderr
    accepted = chef(["demo"], options={"exit_codes": [0, str(code)]})
    assert accepted.status == 0
    assert sentence in accepted.stderr


def test_recipe_that_exits_is_a_failure_with_any_number(chef, kitchen):
    """Chef 18.11.21 ends with 1 for Ruby's exit 9, exit 35 and SystemExit alike."""
    kitchen.recipe("raise SystemExit(35)")
    assert chef(["demo"]).status == 1


def test_missing_licensing_server_is_explained(chef, kitchen):
    """Chef 19.4.9 without a key and a network ends with 1 and prints the reason on stdout only."""
    kitchen.recipe(
        "import sys\n"
        "print('Unable to connect to the licensing server.')\n"
        "sys.stdout.flush()\n"
        "os._exit(1)"
    )
    answer = chef(["demo"])
    assert answer.status == 1
    assert "CHEF_LICENSE_KEY" in answer.stderr


def test_failing_recipe_is_explained_in_stdout(chef, kitchen):
    kitchen.recipe("raise ValueError('so it is')")
    answer = chef(["demo"])
    assert answer.status == 1
    assert "so it is" in answer.stdout


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("nowhere", "Precondition Failed"),
        ("evil; touch /tmp/x", "Precondition Failed"),
        ("recipe[demo", "must be recipe[] or role[]"),
        ("role[absent]", "MissingRole"),
    ],
)
def test_run_list_that_chef_refuses_fails(chef, kitchen, item, words):
    """Status and text of Chef 18.11.21."""
    kitchen.recipe("")
    answer = chef([item])
    assert answer.status == 1
    assert words in answer.stdout


def test_one_item_as_json_text_is_a_run_list(chef, kitchen):
    """heat-agents pass the text on, and Chef accepts it."""
    kitchen.recipe("print('it ran')")
    assert "it ran" in chef('"recipe[demo]"').stdout


@pytest.mark.parametrize("names", [("recipes",), ("policy_name", "policy_group")], ids=",".join)
def test_input_names_with_a_meaning_to_chef_fail(chef, kitchen, names):
    """They fail with heat-agents too; docs/hooks.rst names them."""
    assert chef(["demo"], inputs=dict.fromkeys(names, "x")).status == 1


@pytest.mark.parametrize("how", ["option", "environment", "none", "bad"])
def test_licence_is_accepted_only_by_option_or_environment(bare_chef, install, kitchen, how):
    install("chef-client")
    options = {"chef_license": {"option": "accept-no-persist", "bad": "yes"}.get(how)}
    env = {"HEAT_CHEF_LICENSE": "accept-silent"} if how == "environment" else {}
    answer = bare_chef([], options=options, env=env)
    assert answer.status == {"none": 172, "bad": 1}.get(how, 0)
    if how == "none":
        assert "licence of Chef is not accepted" in answer.stderr
        assert "without accepting" in answer.stdout
    if how == "bad":
        assert "accept-no-persist" in answer.stderr


@pytest.mark.defect("K9")
@pytest.mark.parametrize("name", ["cinc-client", "chef-client", "cinc-solo", "chef-solo"])
def test_program_may_have_any_of_its_names(bare_chef, install, kitchen, name):
    install(name)
    kitchen.recipe("import sys\nprint('I am', sys.argv[0])")
    answer = bare_chef(["demo"], env={"HEAT_CHEF_LICENSE": "accept"})
    assert answer.status == 0, answer.stderr
    assert answer.stdout.count(f"/{name}\n") == 1


def test_cincs_wrapper_needs_no_licence(bare_chef, install, kitchen):
    install("chef-client")
    answer = bare_chef([], env={"STAND_IN_CINC_WRAPPER": "1"})
    assert answer.status == 0
    assert "Redirecting" in answer.stderr


def test_cinc_comes_before_its_wrapper(bare_chef, install, kitchen):
    install("chef-client")
    install("cinc-client")
    kitchen.recipe("import sys\nprint('I am', sys.argv[0])")
    assert "/cinc-client\n" in bare_chef(["demo"]).stdout


@pytest.mark.defect("K3")
def test_any_bytes_and_two_megabytes_are_passed(chef, kitchen):
    kitchen.recipe(
        "os.write(1, b'a' * 2_000_000)\n"
        "open(os.environ['heat_outputs_path'] + '.result', 'wb').write(b'\\xff\\0y')"
    )
    answer = chef(["demo"], outputs=["result"])
    assert "a" * 2_000_000 in answer.stdout
    assert answer.outputs == {"result": "\ufffd\0y"}


@pytest.mark.defect("K18")
def test_parallel_runs_wait_for_each_other(chef, kitchen, tmp_path: Path):
    kitchen.recipe(
        f"import time\nmark = '{tmp_path}/running'\nos.mkdir(mark)\ntime.sleep(0.2)\n"
        + WRITE.format("result", "str(node['n'])")
        + "os.rmdir(mark)\n"
    )

    def one(number: int) -> str:
        answer = chef(["demo"], inputs={"n": number}, outputs=["result"])
        assert answer.status == 0, answer.stdout
        return answer.outputs["result"]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(6))) == [str(n) for n in range(6)]


#: By the config that runs it; a recipe, which is not a config, finds the FIFO of ``hotplate hook
#: check`` here.
RECIPES = {
    "ok": "print('done')",
    "inputs": (
        "for name, value in node.items():\n"
        "    if name.startswith(('a_', 'an_')):\n"
        "        text = value if isinstance(value, str) else __import__('json').dumps(value)\n"
        "        with open(os.environ['heat_outputs_path'] + '.' + name, 'w') as file:\n"
        "            file.write(text)\n"
    ),
    "large": "print('x' * 3_000_000)",
    "binary": "os.write(1, b'\\377\\376')",
    "slow": (
        "import time\n"
        "ready = os.path.join(os.environ['HEAT_CONFIG_CAPTURE'], '..', '..', 'ready')\n"
        "open(os.path.normpath(ready), 'w').write('x')\n"
        "time.sleep(600)\n"
    ),
}


def test_hook_keeps_to_the_contract(check_hook, install, tmp_path: Path, monkeypatch):
    """With the stub of Chef, which no package index has; see docs/defects.rst."""
    # It never ends on SIGTERM, so the lines that try it would wait for all of the time.
    for module in (lines, run):
        monkeypatch.setattr(module, "END_GRACE", 2.0)
    kitchen = Kitchen(tmp_path / "kitchen")
    for name, source in RECIPES.items():
        kitchen.recipe(source, recipe=name)
    configs = {name: [f"recipe[demo::{name}]"] for name in RECIPES}
    contract = {
        "tool": "cinc-client",
        "options": {"kitchen_path": str(kitchen.path)},
        "configs": {**configs, "fails": ["recipe[demo::fails]", "role[@word@]"]},
        "exceptions": {
            "words-on-stdout": "Chef prints there why it fails",
            "ignores-sigterm": "Chef goes on when it is asked to end in mid-converge",
        },
    }
    path = os.pathsep.join([os.environ["PATH"], str(install("cinc-client"))])
    checked = check_hook("chef.py", contract=contract, PATH=path)
    assert checked.problems == {}
    assert checked.not_tried == set()
    assert checked.excepted == {"words-on-stdout", "ignores-sigterm"}
