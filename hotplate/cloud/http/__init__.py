"""The gateway that every request of every service passes: addresses, the event log, faults.

Knows applications, not what they answer.
"""
