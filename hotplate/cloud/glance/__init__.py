"""Glance: the images of the session, and uploaded ones.

Uploads are stored in a file, within limits, as long as the session.
"""
