"""The guest's side of AWS::CloudFormation::Init: library of the ``cfn-*`` commands.

Each section of the metadata (packages, sources, groups, users, files, commands, services) is one
module with a function ``steps(value, where)``. It checks the whole section before anything is
changed, and returns the steps to take; a step that cannot be taken raises :class:`CfnError`.

Only Python's standard library is used (Python 3.9 and later), so that no update of the
distribution can break the commands.
"""

from heat_cfn.problems import CfnError

__all__ = ["CfnError"]
