"""An image's cloud and servers, composed: the one place where Heat's servers become machines.

:class:`~hotplate.testbed.testbed.Testbed` owns them all.  Knows no verdict.
"""
