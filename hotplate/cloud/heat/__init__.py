"""The real Heat: its engine and APIs in this process, with stand-ins for other services.

Started by :class:`~hotplate.cloud.cloud.Cloud`.  All changes to Heat itself are in ``patches``.
"""
