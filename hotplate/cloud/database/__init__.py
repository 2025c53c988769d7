"""What Heat's neighbours remember, in a SQLite file of their own.

Every service of the cloud may keep its tables here; this room knows none of them.
"""
