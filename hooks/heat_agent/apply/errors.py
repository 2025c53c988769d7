"""Errors in metadata, templates or control files, each as one sentence for the user."""


class ApplyError(Exception):
    """No file was written; the text is a sentence that names the file and holds no value."""
