"""What a person asks of Heat: a template, a stack, one deployment, and what is expected of them.

Speaks to any Heat through its client; knows no QEMU and no verdict.
"""
