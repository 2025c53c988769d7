"""The running agent: rounds, signals, reloads, unavailable sources, logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import programs
import pytest
from heat_agent.collect import boot, program, waiting
from stub_server import Asked, Reply

from .conftest import OURS, PASSWORD, REAL, SECRET, TOKEN, cfn_answer
from .test_beside_upstream import RECORD, cfn_conf, heat_conf

SECONDS = 120


class Daemon:
    """One of the two programs, running until it is ended."""

    def __init__(self, guest: Any, program: Path, **env: str) -> None:
        self.guest = guest
        self.log = guest.root / "daemon.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(program)],
                env=guest.environment(**env),
                cwd=guest.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def until(self, predicate: Callable[[], Any]) -> None:
        end = time.monotonic() + SECONDS
        while not predicate():
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < end, self.log.read_text()[-2000:]
            time.sleep(0.02)

    def lines(self, name: str) -> list[str]:
        """The lines of a file that the command writes."""
        path = self.guest.root / name
        return path.read_text().splitlines() if path.exists() else []

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@pytest.fixture
def start(guest) -> Iterator[Callable[..., Daemon]]:
    with ExitStack() as stack:

        def begin(program: Path = OURS, **env: str) -> Daemon:
            made = Daemon(guest, program, **env)
            stack.callback(made.process.wait)
            stack.callback(made.process.kill)
            return made

        yield begin


POLL = {"min_polling_interval": 0.1, "polling_interval": 0.2}
BOTH = pytest.mark.parametrize("program", [REAL, OURS], ids=["real", "ours"])


@BOTH
def test_command_may_change_the_configuration(guest, start, program):
    """Upstream re-executes itself; ours reloads. Either way the new settings are used."""
    guest.write("local/a", {"a": 1})
    (guest.root / "more").mkdir(mode=0o700)
    guest.write("more/b", {"b": 1})
    conf = guest.conf("[local]", "on-change", collectors="local", **POLL)
    guest.program(
        "on-change",
        f"echo $OS_CONFIG_FILES >>{guest.root}/runs\n"
        f"grep -q more {conf} || echo path = {guest.root}/more >>{conf}",
    )
    daemon = start(program)
    daemon.until(lambda: len(daemon.lines("runs")) == 2)
    cache = guest.root / "cache"
    assert daemon.lines("runs") == [f"{cache}/a.json", f"{cache}/a.json:{cache}/b.json"]
    assert daemon.end() == -signal.SIGTERM


@BOTH
def test_sighup_reloads_the_configuration(guest, start, program):
    guest.write("local/a", {"a": 1})
    guest.conf("", f"echo one >>{guest.root}/runs", collectors="local", **POLL)
    daemon = start(program)
    daemon.until(lambda: (guest.root / "cache" / "a.json.last").exists())
    if program == REAL:
        # After a run upstream ignores SIGHUP for good (C7): restart it, so that nothing changes.
        daemon.end()
        (guest.root / "local" / "a").unlink()
        daemon = start(program)
        daemon.until(lambda: catches_sighup(daemon))
    conf = guest.root / "home" / "os-collect-config.conf"
    conf.write_text(conf.read_text().replace("echo one", "echo two"))
    # Delivered before the agent can read another file.
    daemon.process.send_signal(signal.SIGHUP)
    guest.write("local/a", {"a": 2})
    daemon.until(lambda: daemon.lines("runs") == ["one", "two"])
    assert daemon.end() == -signal.SIGTERM


def catches_sighup(daemon: Daemon) -> bool:
    """Return whether the program has installed its handler; see SigCgt in proc(5)."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1)


def test_sighup_waits_for_the_command(guest, start):
    guest.write("local/a", {"a": 1})
    runs, gate = guest.root / "runs", guest.root / "gate"
    command = f"echo begins >>{runs}; until test -e {gate}; do sleep 0.05; done; echo ends >>{runs}"
    guest.conf("", command, collectors="local", debug="true", **POLL)
    daemon = start()
    daemon.until(lambda: daemon.lines("runs") == ["begins"])
    daemon.process.send_signal(signal.SIGHUP)
    gate.touch()
    daemon.until(lambda: "SIGHUP: restarting" in daemon.log.read_text())
    assert daemon.lines("runs") == ["begins", "ends"]
    assert (guest.root / "cache" / "a.json.last").exists()
    count = daemon.log.read_text().count("Nothing has changed")
    daemon.until(lambda: daemon.log.read_text().count("Nothing has changed") > count + 1)
    assert daemon.lines("runs") == ["begins", "ends"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_agent_exits_by_the_signal_even_while_a_server_hangs(guest, start, cloud, number):
    asked: list[Asked] = []
    cloud.reply = lambda request: (asked.append(request), time.sleep(5), Reply(404))[-1]
    guest.conf(cfn_conf(cloud), "true", collectors="cfn", **POLL)
    daemon = start()
    daemon.until(lambda: asked)
    assert daemon.end(number) == -number
    assert "Traceback" not in daemon.log.read_text()


def test_command_ignores_no_signal(guest):
    """Upstream's command, and all its children, ignore SIGHUP (C7)."""
    guest.write("local/a", {"a": 1})
    guest.conf("", f"grep SigIgn /proc/self/status >{guest.root}/ignored")
    assert guest.run("ours", "--one-time", "local").status == 0
    assert (guest.root / "ignored").read_text().split()[1].strip("0") == ""


def test_unavailable_source_keeps_its_document(guest, cloud):
    """Upstream drops it from the list, so templates lose its values (C14)."""
    cloud.documents["cfn:server"] = {"deployments": [{"name": "web", "config": {"port": 80}}]}
    guest.write("local/a", {"a": 1})
    guest.conf(cfn_conf(cloud), RECORD)
    env = {"RECORD": str(guest.root)}
    guest.run("ours", "--one-time", "cfn", "local", **env)
    before = (guest.root / "cache" / "os_config_files.json").read_text()
    cloud.reply = lambda asked: Reply(503)
    guest.write("local/a", {"a": 2})
    done = guest.run("ours", "--one-time", "cfn", "local", **env)
    assert "answered 503" in done.stderr
    assert (guest.root / "cache" / "os_config_files.json").read_text() == before
    assert [path.split("/")[-1] for path in json.loads(before)] == [
        "cfn.json",
        "web.json",
        "a.json",
    ]
    # --print shows only what is available now.
    assert json.loads(guest.run("ours", "--print", "cfn", "local").stdout) == {"a": {"a": 2}}


def test_message_whose_command_failed_is_not_lost(guest, cloud):
    """Reading removes a message from the queue; upstream then loses it (C13)."""
    cloud.queue[:] = [{"n": 1}]
    guest.conf(heat_conf(cloud, section="zaqar"), f"test -e {guest.root}/works")
    assert guest.run("ours", "--one-time", "zaqar").status == 1
    (guest.root / "works").touch()
    assert guest.run("ours", "--one-time", "zaqar").status == 0
    assert (guest.root / "cache" / "zaqar.json.last").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b'<?xml version="1.0" encoding="utf-8"?><a/>',
        cfn_answer(""),
        cfn_answer("[]"),
        cfn_answer({}).replace(b"Metadata>", b"Other>"),
        b"{}",
        b"",
    ],
    ids=repr,
)
def test_invalid_document_is_one_sentence(guest, cloud, body):
    """Each of these kills upstream's daemon (C2)."""
    cloud.reply = lambda asked: Reply(body=body)
    guest.write("local/a", {"a": 1})
    guest.conf(cfn_conf(cloud), RECORD)
    done = guest.run("ours", "--one-time", "cfn", "local", RECORD=str(guest.root))
    assert done.status == 0
    complaints = [line for line in done.stderr.splitlines() if '"cfn"' in line]
    assert len(complaints) == 1
    assert "cache/a.json.last" in done.files


def test_xml_with_a_declaration_and_a_namespace_is_read(guest, cloud):
    body = cfn_answer({"a": "ü"}).replace(b"<Desc", b'<Desc xmlns="http://heat/"', 1)
    body = body.replace(b' xmlns="http://heat/"ribe', b"ribe", 1)
    declared = b"<?xml version='1.0' encoding='utf-8'?>\n" + body
    cloud.reply = lambda asked: Reply(body=declared, headers={"Content-Type": "text/xml"})
    guest.conf(cfn_conf(cloud))
    assert json.loads(guest.run("ours", "--print", "cfn").stdout) == {"cfn": {"a": "ü"}}


def test_unwritable_cache_is_one_sentence(guest):
    guest.write("local/a", {"a": 1})
    guest.conf("", "true")
    (guest.root / "cache").rmdir()
    (guest.root / "cache").write_text("a file")
    done = guest.run("ours", "--one-time", "local")
    assert done.status == 1
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_invalid_configuration_does_not_replace_the_current_one(guest, start):
    guest.write("local/a", {"a": 1})
    conf = guest.root / "home" / "os-collect-config.conf"
    guest.conf(
        "", f"echo run >>{guest.root}/runs; echo nonsense >>{conf}", collectors="local", **POLL
    )
    daemon = start()
    daemon.until(lambda: "The earlier configuration stays in force" in daemon.log.read_text())
    guest.write("local/a", {"a": 2})
    daemon.until(lambda: len(daemon.lines("runs")) == 2)
    assert daemon.end() == -signal.SIGTERM


def test_command_that_always_changes_the_configuration_runs_with_pauses(guest, start):
    guest.write("local/a", {"a": 1})
    conf = guest.root / "home" / "os-collect-config.conf"
    guest.conf(
        "",
        f"echo run >>{guest.root}/runs; echo '# x' >>{conf}; exit 1",
        collectors="local",
        min_polling_interval=600,
    )
    daemon = start()
    daemon.until(lambda: len(daemon.lines("runs")) >= 3)
    time.sleep(1)
    assert len(daemon.lines("runs")) == 3


def test_seams_are_called(guest, cloud, monkeypatch):
    """The parts that a caller can replace: the command, rounds without changes, the start."""
    cloud.documents["cfn:server"] = {"a": 1}
    guest.write("local/b", {"b": 1})
    guest.conf(cfn_conf(cloud), "os-refresh-config --x", collectors="cfn\ncollectors=local", **POLL)
    calls: list[Any] = []

    class Enough(Exception):
        pass

    def idle() -> None:
        calls.append("idle")
        raise Enough

    seams = program.Seams(
        command=lambda command, paths: calls.append((command, paths)) or 0,
        idle=idle,
    )
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Enough):
        program.main([], seams, guest.environment())
    cache = guest.root / "cache"
    paths = [f"{cache}/cfn.json", f"{cache}/b.json"]
    assert calls == [("os-refresh-config --x", paths), "idle"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_prepare_may_refuse_the_start(tmp_path, capsys):
    """With the messages of start-upstream, the element's program for upstream's agent."""
    for status, result in ((0, 0), (1, 0), (78, 78)):
        assert boot.prepare(str(programs.program(tmp_path / "prepare", f"exit {status}"))) == result
    assert capsys.readouterr().err == "os-collect-config: prepare ended with status 1\n"
    assert boot.prepare(str(tmp_path / "none")) == 0
    word = f"os-collect-config: cannot run {tmp_path}/none: No such file or directory\n"
    assert capsys.readouterr().err == word


def test_waiting_signals_are_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("HEAT_CONFIG_DEPLOYED", str(tmp_path))
    command = ("/bin/sh", "-c", f"echo sent >>{tmp_path}/sent")
    waiting.resend(command)
    assert not (tmp_path / "sent").exists()
    (tmp_path / ".waiting").touch()
    waiting.resend(command)
    assert (tmp_path / "sent").read_text() == "sent\n"
    waiting.resend(("/no/such/program",))


def test_splay_delays_the_command_without_an_error(guest):
    """On Python 3.12 and later any splay kills upstream's daemon (C10)."""
    guest.write("local/a", {"a": 1})
    guest.conf("", f"touch {guest.root}/ran; kill $$PPID", collectors="local", splay=0.5)
    assert guest.run("ours").status == -signal.SIGTERM
    assert (guest.root / "ran").exists()


SPIES = [
    lambda asked: Reply(403, b"why"),
    lambda asked: Reply(503),
    lambda asked: Reply(302, headers={"Location": asked.path + "&more=1"}),
    lambda asked: Reply(302, headers={"Location": "http://localhost:9" + asked.path}),
    lambda asked: Reply(body=b"{"),
    lambda asked: Reply(act=lambda handler: handler.wfile.write(b"x")),
    lambda asked: Reply(body=b'{"deployments": "input-of-a-user"}'),
    lambda asked: Reply(404) if asked.method == "GET" else None,
    lambda asked: None,
]


@pytest.mark.parametrize("reply", SPIES)
def test_secrets_are_not_logged(guest, cloud, reply):
    hidden = "input-of-a-user"
    cloud.documents.update(
        {
            "cfn:server": {"deployments": [hidden, {"name": hidden + "/"}, {"name": hidden}]},
            "heat": {"deployments": {hidden: hidden}},
            "request": {"deployments": [{"name": "ok", "config": hidden}]},
        }
    )
    cloud.queue[:] = [{"deployments": [{"name": "b", "config": hidden}]}]
    cloud.reply = reply
    guest.write("local/x", f'{{"{hidden}": "{hidden}')
    guest.write("init-data", f'["{hidden}"]')
    guest.conf(
        cfn_conf(cloud).replace("/cfn/v1/", f"/cfn/v1/?old={SECRET}")
        + heat_conf(cloud)
        + heat_conf(cloud, section="zaqar")
        + f"[request]\nmetadata_url = {cloud.url}/swift/o?temp_url_sig={SECRET}\n"
        + f"[ec2]\nmetadata_url = {cloud.url}/ec2\n",
        "exit 1",
    )
    done = guest.run("ours", "--one-time", "--debug")
    assert '"request"' in done.stderr or reply is SPIES[-1] or "ok" in str(done.files)
    for secret in (SECRET, PASSWORD, TOKEN, hidden, "temp_url_sig", "Signature=", "AWSAccess"):
        assert secret not in done.stderr
        assert secret not in done.stdout


def test_log_goes_to_the_configured_file(guest):
    guest.conf()
    log = guest.root / "logs" / "agent.log"
    log.parent.mkdir()
    words = ["--print", "--debug", "cfn", "--log-dir", str(log.parent), "--log-file", "agent.log"]
    done = guest.run("ours", *words)
    assert (done.status, done.stderr) == (0, "")
    assert done.files["logs/agent.log"][0] == 0o600
    assert log.read_text().endswith(
        'DEBUG os-collect-config Source "cfn": [cfn] metadata_url is not set.\n'
    )
    guest.run("ours", *words, "--use-json")
    line = json.loads(log.read_text().splitlines()[1])
    assert (line["levelname"], line["name"]) == ("DEBUG", "os-collect-config")
    assert guest.run("ours", "--print", "--log-file", "/no/such/file", "cfn").status == 1
    assert guest.run("ours", "--use-syslog", "--syslog-log-facility", "x", "--print").status == 1
    assert guest.run("ours", "--print", "--use-journal", "--debug", "cfn").status == 0


def test_logging_by_python_s_own_configuration(guest):
    guest.conf()
    file = guest.root / "out.log"
    guest.write(
        "logging.conf",
        "[loggers]\nkeys=root\n[handlers]\nkeys=file\n[formatters]\nkeys=plain\n"
        "[logger_root]\nlevel=DEBUG\nhandlers=file\n"
        f"[handler_file]\nclass=FileHandler\nargs=('{file}',)\nformatter=plain\n"
        "[formatter_plain]\nformat=%(levelname)s %(name)s %(message)s\n",
    )
    assert guest.run("ours", "--print", "--log-config-append", "logging.conf", "cfn").status == 0
    assert file.read_text().startswith('DEBUG os-collect-config Source "cfn"')
    assert guest.run("ours", "--print", "--log-config", "no.conf", "cfn").status == 1


def test_requests_are_conditional(guest, cloud, start):
    """Upstream sends HEAD and GET each time, and always gets the whole document (C12)."""
    cloud.documents["request"] = {"a": 1}

    def reply(asked: Asked) -> Reply:
        if asked.headers.get("If-None-Match") == '"1"':
            return Reply(304)
        return Reply(body=b'{"a": 1}', headers={"ETag": '"1"', "Content-Type": "text/plain"})

    cloud.reply = reply
    url = f"[request]\nmetadata_url = {cloud.url}/swift/o\n"
    guest.conf(url, f"echo run >>{guest.root}/runs", collectors="request", **POLL)
    daemon = start()
    daemon.until(lambda: len(cloud.requests) > 3)
    assert daemon.lines("runs") == ["run"]
    assert {request.method for request in cloud.requests} == {"GET"}
    assert cloud.connections == 1
    assert all(request.headers["If-None-Match"] == '"1"' for request in cloud.requests[1:])


@pytest.mark.parametrize(
    "listing", ["instance-id\n\ngone\n", "\ninstance-id\r\ngone", "instance-id\ngone\nempty/"]
)
def test_listing_with_blank_lines_and_missing_entries_is_read(guest, cloud, listing):
    """Each of these kills upstream's daemon, or loses all EC2 metadata (C3)."""
    cloud.ec2.update({"/ec2/": listing, "/ec2/instance-id": "i-1", "/ec2/empty/": ""})
    guest.conf(f"[ec2]\nmetadata_url = {cloud.url}/ec2\n")
    document = json.loads(guest.run("ours", "--print", "ec2").stdout)["ec2"]
    assert document["instance-id"] == "i-1"
    assert "gone" not in document


def test_endless_tree_is_refused(guest, cloud):
    cloud.reply = lambda asked: Reply(body=b"a/\nb/\nc/")
    guest.conf(f"[ec2]\nmetadata_url = {cloud.url}/ec2\n")
    done = guest.run("ours", "--print", "ec2")
    assert json.loads(done.stdout) == {}
    assert "lists more than 500 entries" in done.stderr
    assert len(cloud.requests) == 500


def test_pipe_among_the_local_files_does_not_block(guest):
    guest.write("local/a", {"a": 1})
    os.mkfifo(guest.root / "local" / "pipe", 0o600)
    guest.conf()
    assert guest.run("ours", "--print", "local").status == 0


def test_repeated_warnings_are_logged_once(guest, start, cloud):
    cloud.documents["cfn:server"] = {"deployments": [{"name": "a/b", "config": 1}, 7]}
    guest.conf(cfn_conf(cloud), f"echo run >>{guest.root}/runs", collectors="cfn", **POLL)
    daemon = start()
    daemon.until(lambda: len(cloud.requests) > 4)
    assert daemon.log.read_text().count("is skipped") == 2
    daemon.end()


@BOTH
def test_closed_pipe_ends_printing(guest, program):
    """With the default action of SIGPIPE, as programs in C."""
    guest.write("local/a", {"a": "x" * 1_000_000})
    guest.conf()
    process = subprocess.Popen(
        [str(program), "--print", "local"],
        env=guest.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.wait(SECONDS) == -signal.SIGPIPE
    assert b"Error" not in process.stderr.read()


def test_commands_do_not_see_that_the_agent_was_restarted(guest, start):
    guest.write("local/a", {"a": 1})
    guest.conf("", f"env >>{guest.root}/env", collectors="local", **POLL)
    daemon = start()
    daemon.until(lambda: (guest.root / "cache" / "a.json.last").exists())
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: "SIGHUP: restarting" in daemon.log.read_text())
    guest.write("local/a", {"a": 2})
    daemon.until(lambda: len([e for e in daemon.lines("env") if e.startswith("OS_CONFIG")]) == 2)
    assert not [line for line in daemon.lines("env") if line.startswith("OS_COLLECT")]


def test_polls_share_a_token_until_it_is_refused(guest, start, cloud):
    """Upstream requests a token for each poll (C16)."""
    cloud.documents["heat"] = {"a": 1}
    guest.conf(heat_conf(cloud), f"echo run >>{guest.root}/runs", collectors="heat", **POLL)
    daemon = start()
    daemon.until(lambda: len(cloud.requests) > 4)
    assert cloud.tokens == 1
    assert cloud.connections == 1
    cloud.documents["heat"] = {"a": 2}
    cloud.refused = {f"{TOKEN}-1"}
    daemon.until(lambda: len(daemon.lines("runs")) == 2)
    assert cloud.tokens == 2
    assert "401" not in daemon.log.read_text()


def test_reload_keeps_the_connection_and_the_token(guest, start, cloud):
    cloud.documents["heat"] = {"a": 1}
    conf = guest.conf(heat_conf(cloud), "on-change", collectors="heat", **POLL)
    guest.program("on-change", f"echo run >>{guest.root}/runs; echo '# new' >>{conf}")
    daemon = start()
    daemon.until(lambda: len(cloud.requests) > 2)
    cloud.documents["heat"] = {"a": 2}
    daemon.until(lambda: daemon.log.read_text().count("The configuration has changed") == 2)
    daemon.until(lambda: len(cloud.requests) > 5)
    assert (cloud.tokens, cloud.connections) == (1, 1)
