"""Users, keys, tokens and trusts: over HTTP for guests and clients, in the process for Heat.

It knows no other service.
"""
