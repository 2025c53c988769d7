"""The guest's cfn commands against the real Heat: a typical CFN template."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_software_config import booted
from wire_guest import _SITE, guest

HOOKS = Path(__file__).resolve().parents[2] / "hooks"

TEMPLATE = """
HeatTemplateFormatVersion: '2012-12-12'
Parameters: {Content: {Type: String}}
Resources:
  Access: {Type: OS::Heat::AccessPolicy, Properties: {AllowedResources: [Server]}}
  User: {Type: AWS::IAM::User, Properties: {Policies: [{Ref: Access}]}}
  Keys: {Type: AWS::IAM::AccessKey, Properties: {UserName: {Ref: User}}}
  Handle: {Type: AWS::CloudFormation::WaitConditionHandle}
  Server:
    Type: AWS::EC2::Instance
    Metadata:
      AWS::CloudFormation::Init:
        config: {commands: {a: {command: {Fn::Join: ['', ['echo ', {Ref: Content}]]}}}}
    Properties:
      InstanceType: m1.small
      ImageId: F17-x86_64-cfntools
      UserData:
        Fn::Base64:
          Fn::Join:
          - '|'
          - - '<<'
            - {Ref: Handle}
            - {Ref: Keys}
            - {Fn::GetAtt: [Keys, SecretAccessKey]}
            - {Ref: AWS::StackName}
            - '>>'
  Wait:
    Type: AWS::CloudFormation::WaitCondition
    DependsOn: Server
    Properties: {Handle: {Ref: Handle}, Timeout: '600'}
Outputs: {Data: {Value: {Fn::GetAtt: [Wait, Data]}}}
"""


@pytest.fixture
def booted_guest(cloud: Any, compute: Any, stacks: Any, tmp_path: Path) -> Any:
    """Yield a stack, the words of its user data, and ``run(command, *arguments)`` in its guest."""
    stack_id = stacks.create(TEMPLATE, parameters={"Content": "grüß ☃"})
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        state = tmp_path / "state"
        state.mkdir()
        text = vm.user_data().decode()
        start = text.index('filename="cfn-metadata-server"')
        address = next(line for line in text[start:].splitlines() if line.startswith("http"))
        (state / "cfn-metadata-server").write_text(address)
        words = text.split("<<|")[1].split("|>>")[0].split("|")

        def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, str(HOOKS / command), *arguments],
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(site),
                    "HOTPLATE_TEST_PORTS": json.dumps(vm.ports),
                    "HEAT_CONFIG_LIB": str(HOOKS),
                    "HEAT_CFN_STATE_DIR": str(state),
                    "HEAT_CFN_CACHE_DIR": str(tmp_path / "cache"),
                    "HEAT_CFN_LOG_DIR": str(tmp_path),
                },
                capture_output=True,
                text=True,
                timeout=300,
            )

        yield stack_id, words, run


def test_cfn_init_and_cfn_signal_complete_the_stack(stacks: Any, booted_guest: Any) -> None:
    stack_id, (url, access, secret, stack), run = booted_guest
    where = ("-s", stack, "-r", "Server", "--region", "heat")
    wrong = run("cfn-init", *where, "--access-key", access, "--secret-key", "wrong")
    assert (wrong.returncode, "403" in wrong.stderr) == (1, True), wrong.stderr
    done = run("cfn-init", *where, "--access-key", access, "--secret-key", secret)
    assert done.returncode == 0, done.stderr
    assert "grüß ☃" in done.stdout
    refused = run("cfn-signal", "-e", "0", "-i", "one", url + "x")
    assert (refused.returncode, "403" in refused.stderr) == (1, True), refused.stderr
    signalled = run("cfn-signal", "-e", "0", "-r", "Done", "-d", "data ☃", "-i", "one", url)
    assert signalled.returncode == 0, signalled.stderr
    stacks.wait(stack_id, "CREATE_COMPLETE")
    assert json.loads(stacks.outputs(stack_id)["Data"]) == {"one": "data ☃"}


def test_failure_signal_fails_the_stack(stacks: Any, booted_guest: Any) -> None:
    stack_id, (url, *_), run = booted_guest
    assert run("cfn-signal", "-e", "3", "-r", "it broke", url).returncode == 0
    stack = stacks.wait(stack_id, "CREATE_FAILED")
    assert "it broke" in stack.stack_status_reason
