"""What can be wrong with metadata, templates or control files, as one sentence for a person."""


class ApplyError(Exception):
    """Nothing was written; the text is a sentence that names the file and holds no value."""
