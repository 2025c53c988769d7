"""Storage of the services beside Heat, in a SQLite file of their own.

Every service of the cloud may keep its tables here; this package knows none of the services.
"""
