"""The user's side of Heat: a template, a stack, one deployment, and their expectations.

Speaks to any Heat through its client; knows no QEMU and no verdict.
"""
