"""Glance's part: the images of the session, and those that somebody uploads.

What is uploaded is kept in a file, within bounds, as long as the session.
"""
