"""The outbox table: one INSERT, in the transaction of whoever calls."""

import json
import secrets
import time
import uuid

from sqlalchemy import insert
from sqlalchemy.orm import Session

from tables import Outbox


def enqueue(session: Session, event_type: str, schema: str, number: str, version: int, payload):
    """Adds a message to the transaction of this session; it is sent if that is committed."""
    session.execute(
        insert(Outbox).values(
            id=uuid7(),
            aggregate_type="application",
            aggregate_id=number,
            event_type=event_type,
            payload=json.dumps(payload, ensure_ascii=False).encode(),
            schema_version=schema,
            version=version,
            correlation_id=number,
        )
    )


def uuid7() -> uuid.UUID:
    """Made here, when the message is written: every attempt to send it carries the same id."""
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | 7 << 76 | secrets.randbits(12) << 64
    return uuid.UUID(int=value | 2 << 62 | secrets.randbits(62))
