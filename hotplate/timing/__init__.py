"""Waiting: deadlines on the monotonic clock, stretched by what this host was measured to do.

The one room that sleeps.  It knows nothing of what is waited for.
"""
