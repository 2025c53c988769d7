"""The one exception for what a template's author or an administrator can put right."""


class CfnError(Exception):
    """A failure told in one sentence, which names the step and what was expected."""
