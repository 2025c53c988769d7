"""Quoted errors of failed tools; each file in written/ names its tool."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.verdict.hook_output import LIMIT, HookOutput, error_in

WRITTEN = Path(__file__).parent / "written"
DENIED = "crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied"
QUOTED = {
    "ansible": "TASK [migrate the database]: could not connect to db.example:5432",
    "ansible-syntax": "ERROR! this task 'nosuchmodule' has extra params",
    "compose": f"ERROR: for q_db_1 Cannot start service db: {DENIED}",
    "podman-compose": 'Error: unable to start container "92471cc0668393b0d9ff9198c5fbba',
    "puppet": "echo could not connect to db.example:5432 >&2; exit 7\"' returned 7",
    "puppet-syntax": "Error: Could not parse for environment production: Syntax error at 'service'",
    "python": "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "salt": "could not connect to db.example:5432",
    "salt-jinja": "Rendering SLS 'base:top1' failed: Jinja variable 'salt.utils.optsdict.DictProxy "
    "object' has no attribute 'nothere'; line 3",
    "salt-yaml": "did not find expected ',' or ']' in \"<unicode string>\", line 4",
    "salt-highstate": "migrate the database: Command",
    "salt-state": "Source file salt://nothing/here not found in saltenv 'base'",
    "script": "cp: cannot stat '/nonexistent/app.conf': No such file or directory",
    "script-silent": "+ test -e /no/such/file",
}


@pytest.mark.parametrize("path", sorted(WRITTEN.glob("*.txt")), ids=lambda path: path.stem)
def test_error_is_quoted_for_each_tool(path):
    tool, _, text = path.read_text().partition("\n")
    assert tool.startswith("# ")
    quoted = error_in(text)
    assert QUOTED[path.stem] in quoted
    assert "\n" not in quoted
    assert len(quoted) <= LIMIT + 5


def test_known_error_on_stdout_precedes_noise_on_stderr():
    playbook = (WRITTEN / "ansible.txt").read_text()
    output = HookOutput(
        stdout=playbook, stderr="[WARNING]: Skipping unexpected key\n", status_code="2"
    )
    assert output.error == QUOTED["ansible"]


def test_hook_without_output_has_no_error():
    assert HookOutput(stdout="\n", stderr=" \n---\n").error == ""


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("admin", "mysqladmin: command not found", "mysqladmin: command not found"),
        ("admin", "-padmin user=admin adminadmin", "-pREDACTED user=REDACTED REDACTED"),
        ("admin", "mysql -uroot -padmin", "mysql -uroot -pREDACTED"),
        ("admin", "mysql://root:admin@db 'admin'", "mysql://root:REDACTED@db 'REDACTED'"),
        ("s3cretword", "xs3cretwordx", "xREDACTEDx"),
        ("correcthorsebattery", "xcorrecthorsebatteryx", "xREDACTEDx"),
    ],
)
def test_secret_that_is_common_word_leaves_other_words_readable(secret, text, shown):
    assert HookOutput(stderr=text).without([secret], str).stderr == shown


@pytest.mark.parametrize("secret", ["s3cret/w0rd", "s3cret w0rd+", "pässwörter"])
def test_secret_is_hidden_in_base64_and_in_a_url(secret):
    data = secret.encode()
    lines = [base64.b64encode(each).decode() for each in (data, data + b"\n")]
    forms = [*lines, lines[0].rstrip("="), quote(data), quote(data, safe=""), quote_plus(data)]
    shown = HookOutput(stderr=" ".join(forms)).without([secret], str).stderr
    assert shown.split() == ["REDACTED"] * len(forms)


def test_short_secret_is_not_sought_in_base64():
    """Too many other words would be hidden."""
    assert HookOutput(stderr="YWJjZA==").without(["abcd"], str).stderr == "YWJjZA=="


def test_lines_of_a_key_are_secrets() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0B\n-----END KEY-----\n"
    text = f"no: {key}bad line: MIIEvQIBADANBgkq; hkiG9w0B is a word"
    shown = "no: REDACTEDbad line: REDACTED; hkiG9w0B is a word"
    assert HookOutput(stderr=text).without([key], str).stderr == shown


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_output_is_quoted_in_one_line(stderr, stdout):
    quoted = error_in(stderr, stdout)
    assert len(quoted) <= LIMIT + 5
    assert quoted == " ".join(quoted.split())
