"""The pytest plug-in: servers for tests, and a report of what they did.

pytest loads :mod:`~hotplate.plugin.plugin`; :mod:`~hotplate.plugin.server` is what a test is given.
"""
