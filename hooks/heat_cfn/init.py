"""cfn-init: bring this machine into the state that AWS::CloudFormation::Init describes."""

from __future__ import annotations

from heat_cfn import command_line, plan
from heat_cfn.problems import CfnError
from heat_cfn.step import Changes

PROGRAM = "cfn-init"


def main(argv: list[str] | None = None) -> int:
    """Run cfn-init; returns 0 when every step was taken, 1 after the first that failed."""
    options = command_line.parser(
        PROGRAM,
        "Install packages, unpack sources, make groups, users and files, run commands and start "
        "services, as the resource's metadata (AWS::CloudFormation::Init) says. Stops at the "
        "first step that fails, with exit status 1.",
    )
    command_line.add_source_options(options)
    options.add_argument(
        "-c", "--configsets", metavar="NAMES", help="config sets, with commas between them"
    )
    arguments = options.parse_args(argv)
    return command_line.run(PROGRAM, lambda: _apply(arguments))


def _apply(arguments: object) -> int:
    selected = [
        name.strip() for name in (getattr(arguments, "configsets", "") or "").split(",") if name
    ]
    init = plan.initial(command_line.find(arguments))
    steps = plan.steps(init, selected)  # all of it is checked before anything is changed
    for name in plan.unknown_sections(init, selected):
        _say(f'"{name}" is not a section that cfn-init supports; it is ignored')
    changes = Changes()
    for step in steps:
        _say(step.name)
        try:
            step.run(changes)
        except CfnError as error:
            raise CfnError(f"{step.name}: {error}") from None
        except OSError as error:
            raise CfnError(f"{step.name}: {error.strerror or error}") from None
    return 0


def _say(message: str) -> None:
    print(message, flush=True)
    command_line.note(PROGRAM, message)
