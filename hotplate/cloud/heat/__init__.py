"""The real Heat: its engine and APIs in this process, and what it is given of other services.

Started by :class:`~hotplate.cloud.cloud.Cloud`.  All that is changed in Heat is in ``patches``.
"""
