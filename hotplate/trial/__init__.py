"""One run: an image and a template go in, a verdict comes out.

:class:`~hotplate.trial.trial.Trial` composes; it does not know its caller, a command or pytest.
"""
