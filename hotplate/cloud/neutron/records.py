"""What Neutron remembers: documents of a few kinds, with the attributes that all have."""

from __future__ import annotations

import json
import uuid
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, TypeAlias

from hotplate.cloud.database.store import Store

Values: TypeAlias = dict[str, Any]
"""A resource as Neutron's JSON has it."""


class Records:
    """The documents of one cloud, oldest first."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def transaction(self) -> AbstractContextManager[None]:
        """All that the ``with`` block changes is kept, or nothing; nobody comes between."""
        return self._store.transaction()

    def setting(self, name: str, default: str) -> str:
        """Return what is kept under ``name``; ``default`` is kept first where there is nothing."""
        return self._store.setting(name, default)

    def all(self, kind: str) -> list[Values]:
        """All documents of a kind."""
        rows = self._store.rows(
            "SELECT body FROM hotplate_neutron WHERE kind = ? ORDER BY number", kind
        )
        return [json.loads(row["body"]) for row in rows]

    def get(self, kind: str, record_id: str) -> Values | None:
        """Return the document of that id."""
        row = self._store.row(
            "SELECT body FROM hotplate_neutron WHERE kind = ? AND id = ?", kind, record_id
        )
        return json.loads(row["body"]) if row else None

    def add(self, kind: str, values: Values) -> Values:
        """Keep a new document and return it whole; an ``id`` that is there is used."""
        now = _now()
        record = {
            "id": str(uuid.uuid4()),
            "name": "",
            "description": "",
            "tags": [],
            **values,
            "created_at": now,
            "updated_at": now,
            "revision_number": 1,
        }
        self._store.write(
            "INSERT INTO hotplate_neutron (id, kind, body) VALUES (?, ?, ?)",
            record["id"],
            kind,
            json.dumps(record),
        )
        return record

    def change(self, kind: str, record: Values, changes: Values) -> Values:
        """Keep a document with changes, and return it."""
        changed = {
            **record,
            **changes,
            "updated_at": _now(),
            "revision_number": record["revision_number"] + 1,
        }
        self._store.write(
            "UPDATE hotplate_neutron SET body = ? WHERE kind = ? AND id = ?",
            json.dumps(changed),
            kind,
            record["id"],
        )
        return changed

    def remove(self, kind: str, record_id: str) -> None:
        """Forget a document."""
        self._store.write("DELETE FROM hotplate_neutron WHERE kind = ? AND id = ?", kind, record_id)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
