"""The pytest plug-in: servers for tests, and a report of their behaviour.

pytest loads :mod:`~hotplate.plugin.plugin`; tests get :mod:`~hotplate.plugin.server`.
"""
