"""Storage of the services beside Heat, in a SQLite file beside Heat's own.

A file of its own: SQLite allows one writer, and Heat must not wait for us inside a transaction.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS hotplate_setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS hotplate_project (id TEXT PRIMARY KEY, name TEXT, domain TEXT);
CREATE TABLE IF NOT EXISTS hotplate_user (
    id TEXT PRIMARY KEY, name TEXT, domain TEXT, project TEXT, password TEXT, roles TEXT,
    enabled INTEGER NOT NULL DEFAULT 1);
CREATE TABLE IF NOT EXISTS hotplate_key (
    id TEXT PRIMARY KEY, access TEXT UNIQUE, secret TEXT, user TEXT, project TEXT);
CREATE TABLE IF NOT EXISTS hotplate_trust (
    id TEXT PRIMARY KEY, trustor TEXT, trustee TEXT, project TEXT, roles TEXT);
CREATE TABLE IF NOT EXISTS hotplate_application (
    id TEXT PRIMARY KEY, name TEXT, description TEXT, user TEXT, project TEXT, roles TEXT,
    unrestricted INTEGER, expires_at TEXT, secret TEXT);
CREATE TABLE IF NOT EXISTS hotplate_server (id TEXT PRIMARY KEY, number INTEGER, spec TEXT,
    random_seed TEXT, password TEXT, created TEXT);
CREATE TABLE IF NOT EXISTS hotplate_server_note (id TEXT PRIMARY KEY, notes TEXT);
CREATE TABLE IF NOT EXISTS hotplate_action (
    number INTEGER PRIMARY KEY AUTOINCREMENT, server TEXT, action TEXT, request_id TEXT, user TEXT,
    project TEXT, began REAL, ended REAL, error TEXT);
CREATE INDEX IF NOT EXISTS hotplate_action_server ON hotplate_action (server);
CREATE TABLE IF NOT EXISTS hotplate_server_group (
    id TEXT PRIMARY KEY, name TEXT, policy TEXT, rules TEXT);
CREATE TABLE IF NOT EXISTS hotplate_keypair (
    name TEXT PRIMARY KEY, public_key TEXT, type TEXT, user TEXT);
CREATE TABLE IF NOT EXISTS hotplate_container (
    account TEXT, name TEXT, headers TEXT, PRIMARY KEY (account, name));
CREATE TABLE IF NOT EXISTS hotplate_object (
    account TEXT, container TEXT, name TEXT, data BLOB, type TEXT, etag TEXT, modified REAL,
    PRIMARY KEY (account, container, name));
CREATE TABLE IF NOT EXISTS hotplate_message (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, project TEXT, queue TEXT, body TEXT,
    ttl INTEGER, posted REAL);
CREATE INDEX IF NOT EXISTS hotplate_message_queue ON hotplate_message (project, queue);
CREATE INDEX IF NOT EXISTS hotplate_message_end ON hotplate_message (posted + ttl);
CREATE TABLE IF NOT EXISTS hotplate_queue (
    project TEXT, name TEXT, metadata TEXT, PRIMARY KEY (project, name));
CREATE TABLE IF NOT EXISTS hotplate_image (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, body TEXT);
CREATE TABLE IF NOT EXISTS hotplate_image_member (
    image TEXT, project TEXT, created TEXT, PRIMARY KEY (image, project));
CREATE TABLE IF NOT EXISTS hotplate_neutron (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, kind TEXT, body TEXT);
CREATE INDEX IF NOT EXISTS hotplate_neutron_kind ON hotplate_neutron (kind);
CREATE TABLE IF NOT EXISTS hotplate_usage (
    service TEXT, owner TEXT, bytes INTEGER NOT NULL, PRIMARY KEY (service, owner));
"""

#: Columns added later, which are missing in the tables of an older session.
_ADDED = (
    ("hotplate_keypair", "created", "TEXT NOT NULL DEFAULT ''"),
    ("hotplate_object", "headers", "TEXT NOT NULL DEFAULT '{}'"),
)

#: The tables that guests write to: the service, and the column with the owner of a row.
_COUNTED = {
    "hotplate_container": ("swift", "account"),
    "hotplate_object": ("swift", "account"),
    "hotplate_queue": ("zaqar", "project"),
    "hotplate_message": ("zaqar", "project"),
}

#: Bytes that a row counts beside the data of its columns: its share of the file and of an index.
ROW = 256


class Store:
    """A few tables in a SQLite file, usable from every thread."""

    def __init__(self, path: Path) -> None:
        # Reentrant: transaction() holds it while its block calls row() and write().
        self._lock = threading.RLock()
        # The lock serialises the threads.  isolation_level None turns off the module's implicit
        # BEGIN, so that only transaction() begins one.
        self._connection = sqlite3.connect(
            path, timeout=30.0, check_same_thread=False, isolation_level=None
        )
        self._connection.row_factory = sqlite3.Row
        # Readers must not wait for Heat's writers, nor Heat for ours.
        self._connection.execute("PRAGMA journal_mode=WAL")
        # No fsync: the data survives a crash of the process, not of the host; a cloud lives for a
        # run.
        self._connection.execute("PRAGMA synchronous=OFF")
        # Otherwise a row that "INSERT OR REPLACE" replaces would not be subtracted.
        self._connection.execute("PRAGMA recursive_triggers=ON")
        self._connection.executescript(_SCHEMA)
        for table, column, kind in _ADDED:
            # SQLite has no "ADD COLUMN IF NOT EXISTS".
            if not self.row("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", table, column):
                self.write(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
        for table, (service, owner) in _COUNTED.items():
            self._count(table, service, owner)

    def rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """Return all rows of a SELECT."""
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def row(self, sql: str, *values: object) -> sqlite3.Row | None:
        """Return the first row of a SELECT, or None."""
        with self._lock:
            first: sqlite3.Row | None = self._connection.execute(sql, values).fetchone()
            return first

    def write(self, sql: str, *values: object) -> int:
        """Run a statement that writes; return the number of changed rows."""
        with self._lock:
            return self._connection.execute(sql, values).rowcount

    def find(self, table: str, **equal: object) -> list[sqlite3.Row]:
        """Return the rows with these values, oldest first."""
        return self.rows(
            f"SELECT * FROM {table} WHERE {_all_of(equal)} ORDER BY rowid",  # noqa: S608
            *equal.values(),
        )

    def first(self, table: str, **equal: object) -> sqlite3.Row | None:
        """Return the oldest row with these values, or None."""
        return next(iter(self.find(table, **equal)), None)

    def insert(self, table: str, *values: object) -> None:
        """Add a row, or replace the one with its key.

        :param values: one for each column; None for a number that counts up.
        """
        marks = ", ".join("?" * len(values))
        self.write(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", *values)  # noqa: S608

    def delete(self, table: str, **equal: object) -> int:
        """Delete the rows with these values; return their number."""
        return self.write(f"DELETE FROM {table} WHERE {_all_of(equal)}", *equal.values())  # noqa: S608

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store all writes of the ``with`` block, or none, isolated from other threads."""
        with self._lock:
            if self._connection.in_transaction:
                # Part of the outer transaction.
                yield
                return
            # IMMEDIATE takes the write lock at once; a deferred transaction takes it at its first
            # write, where SQLite may refuse it.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # For KeyboardInterrupt, too: the connection is shared and must not stay in a
                # transaction.
                self._connection.execute("ROLLBACK")
                raise

    def _count(self, table: str, service: str, owner: str) -> None:
        """Maintain the sum of a table's rows for each owner with triggers."""
        columns = [row["name"] for row in self.rows(f"PRAGMA table_info({table})")]

        def changed(row: str, sign: str) -> str:
            # length() counts the characters of a text, but the bytes of a blob.
            parts = (f"coalesce(length(CAST({row}.{each} AS BLOB)), 0)" for each in columns)
            usage = f"service = '{service}' AND owner = {row}.{owner}"
            # No upsert: its conflict clause would be overridden by that of the outer statement.
            return (
                f"INSERT INTO hotplate_usage SELECT '{service}', {row}.{owner}, 0"  # noqa: S608
                f" WHERE NOT EXISTS (SELECT 1 FROM hotplate_usage WHERE {usage});"
                f" UPDATE hotplate_usage SET bytes = bytes {sign} ({ROW} + {' + '.join(parts)})"
                f" WHERE {usage};"
            )

        old, new = changed("OLD", "-"), changed("NEW", "+")
        for event, body in (("INSERT", new), ("DELETE", old), ("UPDATE", old + new)):
            name = f"{table}_{event.lower()}"
            # Made anew: a trigger of an older session does not count the columns in _ADDED.
            self._connection.executescript(
                f"DROP TRIGGER IF EXISTS {name};"
                f"CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {body} END;"
            )

    def stored(self, service: str, owner: str) -> int:
        """Return the bytes that are stored for an owner: names, headers, data and rows.

        :param service: ``swift``, whose owners are accounts, or ``zaqar``, whose are projects.
        """
        row = self.first("hotplate_usage", service=service, owner=owner)
        return int(row["bytes"]) if row else 0

    def setting(self, name: str, default: str) -> str:
        """Return the setting ``name``; store ``default`` first when it is not set."""
        with self._lock:
            self.write("INSERT OR IGNORE INTO hotplate_setting VALUES (?, ?)", name, default)
            row = self.first("hotplate_setting", name=name)
        assert row is not None
        return str(row["value"])

    def close(self) -> None:
        """Close the connection; the file stays."""
        with self._lock:
            self._connection.close()


def _all_of(equal: Mapping[str, object]) -> str:
    return " AND ".join(f"{column} = ?" for column in equal)


def copy_database(path: Path, target: Path) -> None:
    """Write a consistent copy of a SQLite database, which may be in use, to ``target``."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
