"""Users, keys, tokens and trusts, for guests and clients by HTTP and for Heat in the process.

Knows no other service.
"""
