"""``hotplate hook check`` on a good hook in Perl."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from hotplate.cli import main

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


def test_good_hook_in_perl_passes(capsys, tmp_path):
    """The bad ones are those of test_check.py: a check sees nothing of a hook's language."""
    if subprocess.run(["perl", "-MJSON::PP", "-e", "1"], capture_output=True).returncode:
        pytest.skip("Perl has no JSON::PP on this host")
    hook = tmp_path / "mine.pl"
    hook.write_text(PERL)
    hook.chmod(0o755)
    configs = yaml.safe_load(CONTRACTS.read_text())["script"]["configs"]
    contract = tmp_path / "contract.yaml"
    contract.write_text(yaml.safe_dump({"configs": configs, "tool": "sh"}))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = ["--group", "mine", "--contract", str(contract), "--json"]
    status = main(["hook", "check", str(hook), *words, "--changes-in", str(elsewhere)])
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert {each["name"]: each["faults"] for each in lines if each["faults"]} == {}
    assert (status, {each["state"] for each in lines}) == (0, {"passed"})
