"""``hotplate hook check`` on a good hook in Perl, and on bad ones in shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from hotplate.cli import main
from hotplate.hookkit import lines

CONTRACTS = Path(__file__).resolve().parents[2] / "hotplate/hookkit/contracts.yaml"

#: A hook whose tool is a shell.
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

#: By the line, with a suffix for variants: the replaced part of the hook of ``hotplate hook new
#: --lang sh``, and words of the reason.
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


def test_good_hook_in_perl_passes(check, tmp_path):
    """The bad ones are those of test_check.py: a check sees nothing of a hook's language."""
    if subprocess.run(["perl", "-MJSON::PP", "-e", "1"], capture_output=True).returncode:
        pytest.skip("Perl has no JSON::PP on this host")
    status, lines = check(tmp_path / "hooks" / "mine.pl", PERL)
    assert {each["name"]: each["faults"] for each in lines if each["faults"]} == {}
    assert (status, {each["state"] for each in lines}) == (0, {"passed"})


@pytest.mark.parametrize("case", BAD_SHELL)
def test_bad_hook_in_shell_fails_its_own_line(check, shell, tmp_path, case, monkeypatch):
    if case == "interruption":
        # What it leaves runs for ten minutes.
        monkeypatch.setattr(lines, "DYING", 0.5)
    old, new, words = BAD_SHELL[case]
    assert old in shell
    # The first part answers, the rest is the hook's own.
    head, middle, rest = shell.partition("set -eu")
    if case == "answer":
        head = head.replace(old, new)
    else:
        rest = rest.replace(old, new)
    tried = case.split()
    status, results = check(tmp_path / "hooks" / "mine.sh", head + middle + rest, *tried)
    failed = {each["name"]: each["faults"] for each in results if each["state"] == "failed"}
    assert (status, list(failed)) == (1, tried[:1]), failed
    assert any(words in each["reason"] for each in failed[tried[0]]), failed
    assert all(each["mend"] for each in failed[tried[0]])
