"""The tables: the business, and of the outbox and inbox the columns that are used here."""

import uuid

from sqlalchemy import LargeBinary
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Application(Base):
    __tablename__ = "application"

    number: Mapped[str] = mapped_column(primary_key=True)
    applicant: Mapped[str]
    region: Mapped[str]
    version: Mapped[int]


class Outbox(Base):
    __tablename__ = "outbox"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    aggregate_type: Mapped[str]
    aggregate_id: Mapped[str]
    event_type: Mapped[str]
    payload: Mapped[bytes] = mapped_column(LargeBinary)
    schema_version: Mapped[str | None]
    version: Mapped[int | None]
    correlation_id: Mapped[str | None]


class Inbox(Base):
    __tablename__ = "inbox"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    seq: Mapped[int]
    aggregate_id: Mapped[str | None]
    payload: Mapped[bytes] = mapped_column(LargeBinary)
