"""Documents that no Heat would send: no traceback, and no file written outside."""

import json
import os
import sys
from pathlib import Path

from heat_config import command, proxy, request, result, state, transport
from heat_config.settings import Settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

#: New ones in each run. Generating them takes three quarters of the time.
DOCUMENTS = 1_000

TEXT = st.text(max_size=8) | st.sampled_from(["", "../../x/evil", "/etc/x", "\0", "\ud800", "a\nb"])
ODD = [None, True, 0, -1, 1.5, 10**400, float("nan"), float("inf"), [], {}, [[]], [None], {"": 0}]
ODD += [{"name": "x"}, [{"name": {}}], {"configs": {}}, [["CREATE"]], "CREATE", "\x00", "\ud800"]
JSON = st.sampled_from(ODD) | TEXT | st.lists(st.sampled_from(ODD), max_size=2)
# Never an address beyond loopback, and there a port without a listener.
URL = st.sampled_from(
    [
        "http://127.0.0.1:1/v1/signal/x?Timestamp=soon&Signature=s",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://[::1",
        "http://",
        "http://127.0.0.1:1/\r\nX: y",
        "https://127.0.0.1:1/",
        "ftp://127.0.0.1/",
        "http://[::1]:1/",
        "http://[fe80::1%25lo]:1/",
        " http://127.0.0.1:1/x ",
        "http://127.0.0.1:1/\u2603",
        "\ud800",
    ]
)
NAMES = st.sampled_from(
    [
        "deploy_action",
        "deploy_stack_id",
        "deploy_resource_name",
        "deploy_signal_verb",
        "deploy_user_id",
        "foo",
    ]
)
INPUT = (
    st.fixed_dictionaries(
        {"name": NAMES}, optional={"value": JSON, "type": TEXT | st.just("String")}
    )
    | st.fixed_dictionaries(
        {"name": st.sampled_from(["deploy_signal_id", "deploy_auth_url"]), "value": URL}
    )
    | st.just({"name": "deploy_signal_transport", "value": "NO_SIGNAL"})
    | JSON
)
COMPONENT = st.fixed_dictionaries(
    {
        "configs": st.lists(
            st.fixed_dictionaries(
                {}, optional={"actions": st.just(["CREATE"]) | JSON, "tool": JSON, "config": JSON}
            )
            | JSON,
            max_size=2,
        )
        | JSON
    }
)
OPTIONS = st.fixed_dictionaries(
    {}, optional={"timeout": st.sampled_from([0.5, "1", -1]) | JSON, "on_interrupt": JSON}
)
FIELDS = {
    "name": TEXT | JSON,
    "config": COMPONENT | JSON,
    "inputs": st.lists(INPUT, max_size=3) | JSON,
    "outputs": st.lists(st.fixed_dictionaries({"name": TEXT}) | JSON, max_size=2) | JSON,
    "options": OPTIONS | JSON,
    "creation_time": JSON,
}
ID = st.sampled_from(["a", "b", "a.notify", "a-1"])
GROUP = st.sampled_from(["shell", "shell", "component", "os-apply-config", "Heat::Ungrouped"])
# Some documents that reach a hook, and some that must not.
NEARLY_GOOD = st.fixed_dictionaries({"id": ID, "group": GROUP}, optional=FIELDS)
WILD = st.fixed_dictionaries({}, optional={"id": TEXT | JSON, "group": GROUP | JSON, **FIELDS})
ELEMENT = NEARLY_GOOD | WILD
DOCUMENT = st.lists(ELEMENT, max_size=2) | st.lists(JSON, max_size=2) | JSON
CHANGES = ("open", "os.rename", "os.mkdir", "os.remove", "os.chmod", "os.rmdir")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def test_random_document_raises_no_traceback(guest, runner, capfd, monkeypatch):
    # Measure the handling of a document, not how fast a disk syncs.
    fast = Path("/dev/shm")
    root = guest.root if not os.access(fast, os.W_OK) else fast / f"heat-config-{os.getpid()}"
    root.mkdir(exist_ok=True)
    state, logs = root / "deployed", root / "log"
    (guest.hooks / "shell").unlink()
    (guest.hooks / "shell").symlink_to("/bin/true")
    guest.config.write_text("signal_time = 0.0001\nforget_after = 0\nkeep_logs = 0\n")
    guest.document = root / "heat-config"
    environment = {
        **guest.environment,
        "HEAT_CONFIG_DEPLOYED": str(state),
        "HEAT_CONFIG_LOGS": str(logs),
    }
    # Forgetting a deployment removes its files in the hooks' directories: the guest's, not this
    # host's.
    metadata = root / "metadata"
    monkeypatch.setattr("heat_config.leftovers.METADATA", str(metadata))
    allowed = (*map(str, (state, logs, metadata, guest.console)), os.devnull)
    watching = [False]
    elsewhere: list[str] = []

    def audit(event, arguments):
        if not watching[0] or event not in CHANGES:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITES):
            return
        path = arguments[0]
        if isinstance(path, (str, bytes)) and not os.fsdecode(path).startswith(allowed):
            elsewhere.append(f"{event} {path!r}")

    sys.addaudithook(audit)
    before = os.umask(0o022), os.getcwd()  # noqa: PTH109
    chosen = Settings(environment)
    seen = [0]

    @settings(
        max_examples=DOCUMENTS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(DOCUMENT)
    def check(document):
        seen[0] += 1
        guest.document.write_bytes(json.dumps(document).encode())
        guest.document.chmod(0o600)
        watching[0] = True
        try:
            status = runner.with_state(chosen, lambda one: one.run())
        finally:
            watching[0] = False
        assert status in (0, 1)
        assert not elsewhere
        for path in state.iterdir():
            assert path.is_file()
            assert path.parent == state

    try:
        check()
    finally:
        os.umask(before[0])
        os.chdir(before[1])
        if root != guest.root:
            import shutil

            shutil.rmtree(root, ignore_errors=True)
    log = capfd.readouterr().err
    assert "Traceback" not in log
    assert "failed unexpectedly" not in log
    assert all(line.startswith("heat-config: ") for line in log.splitlines())
    assert seen[0] >= DOCUMENTS


@settings(max_examples=500, deadline=None, database=None)
@given(
    st.text(max_size=40)
    | st.builds(
        "{}://{}:{}{}".format,
        st.sampled_from(["http", "https", "HTTP", "socks5", ""]),
        st.text("[]:%25@ab.1\u2603\ud800/\\", max_size=12),
        st.text("0123456789x", max_size=6),
        st.text(max_size=12),
    )
)
def test_url_is_parsed_or_a_value_error(url):
    request.redacted(url)
    try:
        target = request.Target(url)
    except ValueError:
        pass
    else:
        assert (target.authority + target.path).isascii()
        assert not any(c <= " " for c in target.authority + target.path)
    for names in ({"http_proxy": url}, {"all_proxy": "http://h", "no_proxy": url}):
        try:
            chosen = proxy.of("http", "heat.example", 80, names)
        except ValueError:
            continue
        assert chosen is None or chosen.host


@settings(max_examples=300, deadline=None, database=None)
@given(
    record=st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries(
        {"heat_config": JSON | st.fixed_dictionaries({"version": JSON, "state": JSON | TEXT})},
        optional={"id": JSON, "name": JSON, "group": JSON, "inputs": JSON, "outputs": JSON},
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_file_is_a_record_a_heat_agents_mark_or_damaged(record, tmp_path_factory):
    store = state.Store(str(tmp_path_factory.getbasetemp()))
    Path(store.path("r-1", ".json")).write_bytes(record)
    loaded = store.load(clear=False)["r-1"]
    assert loaded.state in state.STATES
    command._row(loaded)
    try:
        document = json.loads(record.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        assert loaded.state == (state.DAMAGED if record else state.SIGNALLED)
    else:
        foreign = isinstance(document, dict) and "heat_config" not in document
        assert bool(loaded.mark.get("foreign")) == foreign


@settings(max_examples=300, deadline=None, database=None)
@given(st.binary(max_size=200) | TEXT.map(lambda text: f"x\n{{{text}".encode("utf-8", "replace")))
def test_any_hook_output_is_read(data):
    result.stray(data, "hook")
    answer = result.read_answer(data, data, 0, "hook", ["r"])
    assert isinstance(answer["deploy_status_code"], int)


CATALOG = st.lists(
    JSON
    | st.fixed_dictionaries(
        {"type": st.just("orchestration") | JSON},
        optional={
            "endpoints": JSON
            | st.lists(
                JSON
                | st.fixed_dictionaries(
                    {"interface": st.just("public") | JSON, "url": TEXT | JSON},
                    optional={"region_id": JSON, "region": JSON},
                ),
                max_size=3,
            )
        },
    ),
    max_size=3,
)


@settings(max_examples=300, deadline=None, database=None)
@given(CATALOG | JSON, TEXT | st.none())
def test_any_catalogue_gives_an_endpoint_or_a_sentence(catalog, region):
    try:
        assert isinstance(transport._endpoint(catalog, "orchestration", region), str)
    except transport.NotAccepted as error:
        assert "no public endpoint" in error.sentence
