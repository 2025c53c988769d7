"""A cloud that stays up, and the access of other processes to its servers.

Commands use :mod:`~hotplate.session.access`; no module here gives a verdict.
"""
