"""The event stream of a run, and the meaning of each event.

Every room above may emit and read; this one knows nothing of QEMU, Heat or verdicts.
"""
