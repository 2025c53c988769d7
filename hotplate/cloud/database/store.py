"""What the neighbours of Heat remember, in a SQLite file beside Heat's own.

Not the same file: SQLite has one writer, and Heat must not wait for us inside a transaction.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
CREATE TABLE IF NOT EXISTS hotplate_queue (
    project TEXT, name TEXT, metadata TEXT, PRIMARY KEY (project, name));
CREATE TABLE IF NOT EXISTS hotplate_image (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, body TEXT);
CREATE TABLE IF NOT EXISTS hotplate_neutron (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, kind TEXT, body TEXT);
CREATE INDEX IF NOT EXISTS hotplate_neutron_kind ON hotplate_neutron (kind);
"""

_ADDED = (
    ("hotplate_keypair", "created", "TEXT NOT NULL DEFAULT ''"),
    ("hotplate_object", "headers", "TEXT NOT NULL DEFAULT '{}'"),
)
"""Columns that came later: a session that was kept has tables without them."""


class Store:
    """A few tables in a SQLite file, usable from every thread.

    Durable against the death of the process, not of the host: the cloud lives as long as a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(
            path, timeout=30.0, check_same_thread=False, isolation_level=None
        )
        self._connection.row_factory = sqlite3.Row
        # Readers must not wait for Heat's writers, nor Heat for ours.
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.executescript(_SCHEMA)
        for table, column, kind in _ADDED:
            if not self.row("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", table, column):
                self.write(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")

    def rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """All rows a SELECT gives."""
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def row(self, sql: str, *values: object) -> sqlite3.Row | None:
        """Return the first row a SELECT gives, or None."""
        with self._lock:
            first: sqlite3.Row | None = self._connection.execute(sql, values).fetchone()
            return first

    def write(self, sql: str, *values: object) -> int:
        """Run a statement that changes something; returns how many rows it changed."""
        with self._lock:
            return self._connection.execute(sql, values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that the ``with`` block writes is kept, or nothing; no other thread comes between."""
        with self._lock:
            if self._connection.in_transaction:
                # Part of the one around it.
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    def take(self, select: str, delete: str, *values: object) -> list[sqlite3.Row]:
        """Rows of ``select``, each deleted by ``delete`` with its first column, in one step."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                rows = self._connection.execute(select, values).fetchall()
                for row in rows:
                    self._connection.execute(delete, (row[0],))
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            return rows

    def setting(self, name: str, default: str) -> str:
        """Return the value kept under ``name``; ``default`` is kept first where there is none."""
        with self._lock:
            self.write("INSERT OR IGNORE INTO hotplate_setting VALUES (?, ?)", name, default)
            row = self.row("SELECT value FROM hotplate_setting WHERE name = ?", name)
        assert row is not None
        return str(row["value"])

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of the database to ``path``."""
        target = sqlite3.connect(path)
        try:
            with self._lock:
                self._connection.backup(target)
        finally:
            target.close()

    def close(self) -> None:
        """Close the connection; the file stays."""
        with self._lock:
            self._connection.close()
