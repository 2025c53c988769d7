"""A cloud that stays up, and how other processes reach its servers.

:mod:`~hotplate.session.access` is what commands use; nothing here gives a verdict.
"""
