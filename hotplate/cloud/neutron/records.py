"""Neutron's storage: documents of a few kinds, with their common attributes."""

from __future__ import annotations

import json
import uuid
from typing import Any, TypeAlias

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import now

#: A resource in the form of Neutron's JSON.
Values: TypeAlias = dict[str, Any]


class Records:
    """The documents of one cloud, oldest first."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self, kind: str) -> list[Values]:
        """Return all documents of a kind."""
        return [json.loads(row["body"]) for row in self._store.find("hotplate_neutron", kind=kind)]

    def where(self, kind: str, **equal: object) -> list[Values]:
        """Return the documents of a kind with these values."""
        return [
            each
            for each in self.all(kind)
            if all(each.get(name) == value for name, value in equal.items())
        ]

    def get(self, kind: str, record_id: str) -> Values | None:
        """Return the document with that id, or None."""
        row = self._store.first("hotplate_neutron", kind=kind, id=record_id)
        return json.loads(row["body"]) if row else None

    def add(self, kind: str, values: Values) -> Values:
        """Store a new document and return it complete; a given ``id`` is used."""
        created = now()
        record = {
            "id": str(uuid.uuid4()),
            "name": "",
            "description": "",
            "tags": [],
            **values,
            "created_at": created,
            "updated_at": created,
            "revision_number": 1,
        }
        self._store.insert("hotplate_neutron", None, record["id"], kind, json.dumps(record))
        return record

    def change(self, kind: str, record: Values, changes: Values) -> Values:
        """Store the changes of a document, and return the new document."""
        changed = {
            **record,
            **changes,
            "updated_at": now(),
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
        """Delete a document."""
        self._store.delete("hotplate_neutron", kind=kind, id=record_id)
