"""One run: an image and a template go in, a verdict comes out.

:class:`~hotplate.trial.trial.Trial` composes; it does not know who asked, a command or pytest.
"""
