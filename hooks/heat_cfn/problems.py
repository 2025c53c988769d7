"""The one exception for what a template's author or an administrator can correct."""


class CfnError(Exception):
    """A failure described in one sentence, which names the step and what was expected."""
