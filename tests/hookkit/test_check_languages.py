"""``hotplate hook check`` on hooks in Perl and in shell: good ones, and bad ones for each line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from hotplate.cli import main
from hotplate.hookkit.contract import LINE_NAMES

CONTRACTS = Path(__file__).resolve().parents[2] / "hotplate/hookkit/contracts.yaml"

PERL = r"""#!/usr/bin/perl
use strict;
use warnings;
use Encode qw(decode encode);
use File::Path qw(make_path);
use JSON::PP;

my $json = JSON::PP->new->utf8->allow_nonref;
my $given = $json->decode(do { local $/; <STDIN> });
my $work = $ENV{HEAT_MINE_WORKING};
make_path($work, { mode => 0700 });
my $name = "$work/$given->{id}";
my $secret = "$name.inputs";
END { unlink $secret if defined $secret; }
$SIG{TERM} = sub { exit 143 };

my %inputs = map { $_->{name} => $_->{value} } @{ $given->{inputs} };
for my $key (keys %inputs) {
    my $value = $inputs{$key};
    $ENV{$key} = ref $value || !defined $value ? $json->encode($value) : encode('UTF-8', $value);
}
$ENV{heat_outputs_path} = $name;

sub spill {
    my ($path, $text, $mode) = @_;
    unlink $path;
    umask(0777 & ~$mode);
    open(my $file, '>', $path) or die;
    print $file $text;
    close $file;
}

sub slurp {
    open(my $file, '<', $_[0]) or return '';
    local $/;
    return <$file> // '';
}

spill("$name.config", encode('UTF-8', $given->{config}), 0600);
spill($secret, $json->encode(\%inputs), 0600);
my ($status, $out, $err) = (127, '', 'sh is not installed');
if (grep { -x "$_/sh" } split /:/, $ENV{PATH}) {
    my $pid = fork;
    if (!$pid) {
        open(STDOUT, '>', "$name.out");
        open(STDERR, '>', "$name.err");
        exec 'sh', "$name.config";
    }
    waitpid $pid, 0;
    $status = $? >> 8;
    ($out, $err) = (slurp("$name.out"), slurp("$name.err"));
}
my %answer = (deploy_status_code => $status);
$answer{deploy_stdout} = decode('UTF-8', $out);
$answer{deploy_stderr} = decode('UTF-8', $err);
for my $output (@{ $given->{outputs} }) {
    my $path = "$name.$output->{name}";
    $answer{$output->{name}} = decode('UTF-8', slurp($path)) if -e $path;
}
print $json->encode(\%answer), "\n";
"""
"""A hook whose tool is a shell."""

WAITING = r"""open(my $count, '>>', "$work/count"); syswrite $count, 'x'; close $count;
for (1 .. 600) { last if -s "$work/count" != 2; select undef, undef, undef, 0.1 }
"""
"""The first of two parallel runs waits until the second has got as far."""

BAD_PERL = {
    "answer": ("print $json", "print qq(working\\n);\nprint $json", "text beside the JSON"),
    "inputs": ("$json->encode($value) : ", '"$value" : ', "came back as"),
    "unicode": ("encode('UTF-8', $value);", "encode('ascii', $value);", "the input a_text"),
    "large-output": ("decode('UTF-8', $out)", "substr($out, 0, 9000)", "9000 characters"),
    "binary-output": (
        "decode('UTF-8', $out)",
        "decode('UTF-8', $out, Encode::FB_CROAK)",
        "it crashed",
    ),
    "failure": ("(deploy_status_code => $status)", "(deploy_status_code => 0)", "a success"),
    "missing-tool": ("= (127,", "= (0,", 'without "sh" on PATH it gives'),
    "log": ("my %answer", "print STDERR $json->encode(\\%inputs);\nmy %answer", "in its log"),
    "private": (
        'spill("$name.config"',
        'chmod 0755, $work;\nspill("$name.copy", $inputs{password}, 0644);\nspill("$name.config"',
        "every user can read it",
    ),
    "outside": ("my %answer", "spill('@elsewhere@/state', 'x', 0644);\nmy %answer", "/state"),
    "again": ("    unlink $path;\n", "    die if $path =~ /config$/ && -e $path;\n", "second run"),
    "at-once": ('my $name = "$work/$given->{id}";', 'my $name = "$work/one";', "one deployment"),
    "time-limit": ("$SIG{TERM} = sub { exit 143 };", "", '.inputs" still holds an input'),
    "interruption": (
        "        exec 'sh', \"$name.config\";",
        "        require POSIX; POSIX::setsid();\n        exec 'sh', \"$name.config\";",
        "still runs",
    ),
}
"""By the line: the replaced part, and words of the reason."""

BAD_SHELL = {
    "answer": ("if [", "echo working\nif [", "text beside the JSON"),
    "failure": ("exec", 'trap "exit 0" EXIT; command', "a success"),
    "missing-tool": ("exit 127", "exit 0", 'without "sh" on PATH it gives'),
    "log": ("program=", "env >&2\nprogram=", "the input password is in deploy_stderr"),
    "private interruption": (
        'exec "$program"',
        'exec "$program" -c \'. "$0"; :\' "${heat_config_file:?}" "$password"',
        "an input is an argument of the program",
    ),
    "outside": ("program=", "touch @elsewhere@/state\nprogram=", "/state"),
    "interruption": ("exec", "exec setsid -w", "still runs"),
}
"""By the line, with a suffix for variants: the same for the hook of ``hotplate hook new --lang
sh``.
"""


@pytest.fixture
def check(tmp_path, capsys):
    """Check a hook's text against lines of the contract; return the exit status and the results."""
    (tmp_path / "elsewhere").mkdir()

    def run(hook, text, *lines):
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(text.replace("@elsewhere@", str(tmp_path / "elsewhere")))
        hook.chmod(0o755)
        configs = yaml.safe_load(CONTRACTS.read_text())["script"]["configs"]
        contract = tmp_path / "contract.yaml"
        contract.write_text(yaml.safe_dump({"configs": configs, "tool": "sh"}))
        words = ["--group", "mine", "--contract", str(contract), "--json"]
        words += ["--changes-in", str(tmp_path / "elsewhere")]
        status = main(["hook", "check", str(hook), *words, *(f"--line={each}" for each in lines)])
        return status, json.loads(capsys.readouterr().out)["lines"]

    return run


@pytest.fixture
def shell(tmp_path, capsys, monkeypatch) -> str:
    """Return the text of a new hook in shell."""
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    assert main(["hook", "new", "mine", "--lang", "sh"]) == 0
    capsys.readouterr()
    return Path("hooks/mine.sh").read_text()


def assert_fails_its_own(done, line, words):
    status, lines = done
    failed = {each["name"]: each["faults"] for each in lines if each["state"] == "failed"}
    assert (status, list(failed)) == (1, [line]), failed
    assert any(words in each["reason"] for each in failed[line]), failed
    assert all(each["mend"] for each in failed[line])


def require_json_in_perl():
    if subprocess.run(["perl", "-MJSON::PP", "-e", "1"], capture_output=True).returncode:
        pytest.skip("Perl has no JSON::PP on this host")


def test_each_line_has_a_bad_hook_in_perl():
    assert set(BAD_PERL) == set(LINE_NAMES)
    assert {name for case in BAD_SHELL for name in case.split()} <= set(LINE_NAMES)


def test_good_hook_in_perl_passes(check, tmp_path):
    require_json_in_perl()
    status, lines = check(tmp_path / "hooks" / "mine.pl", PERL)
    assert {each["name"]: each["faults"] for each in lines if each["faults"]} == {}
    assert (status, {each["state"] for each in lines}) == (0, {"passed"})


@pytest.mark.parametrize("line", BAD_PERL)
def test_bad_hook_in_perl_fails_its_own_line(check, tmp_path, line):
    require_json_in_perl()
    old, new, words = BAD_PERL[line]
    assert old in PERL
    text = PERL.replace(old, new)
    if line == "at-once":
        text = text.replace("spill($secret,", f"{WAITING}spill($secret,")
    if line == "interruption":
        text = text.replace("my $pid = fork;", "$SIG{TERM} = sub { exit 143 };\nmy $pid = fork;")
    assert_fails_its_own(check(tmp_path / "hooks" / "mine.pl", text, line), line, words)


@pytest.mark.parametrize("case", BAD_SHELL)
def test_bad_hook_in_shell_fails_its_own_line(check, shell, tmp_path, case):
    old, new, words = BAD_SHELL[case]
    assert old in shell
    # The first part answers, the rest is the hook's own.
    head, middle, rest = shell.partition("set -eu")
    if case == "answer":
        head = head.replace(old, new)
    else:
        rest = rest.replace(old, new)
    lines = case.split()
    done = check(tmp_path / "hooks" / "mine.sh", head + middle + rest, *lines)
    assert_fails_its_own(done, lines[0], words)
