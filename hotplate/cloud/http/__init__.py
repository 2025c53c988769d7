"""The gateway for every request to every service: addresses, the event log, faults.

It knows applications, but not their responses.
"""
