"""The one exception for errors that a template's author or an administrator can correct."""


class CfnError(Exception):
    """A failure described in one sentence, which names the step and the expected value."""
