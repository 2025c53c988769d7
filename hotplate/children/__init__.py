"""Programs that die with the harness, however it ends.

:class:`~hotplate.children.keeper.Keeper` is the harness's end, :mod:`~hotplate.children.reaper` the
small process between the harness and its children.
"""
