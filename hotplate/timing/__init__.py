"""Waiting: deadlines on the monotonic clock, scaled by the measured speed of this host.

Only this room sleeps. It knows nothing about the events it waits for.
"""
