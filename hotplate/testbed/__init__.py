"""The cloud and servers of an image, composed: only here do Heat's servers become machines.

:class:`~hotplate.testbed.testbed.Testbed` owns them all.  It gives no verdict.
"""
