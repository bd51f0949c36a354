"""The log of a PostgreSQL store, to which many transactions can write at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from poolhand.rules.audit import STREAM
from poolhand.stores.postgres.locks import STREAMS, Locks
from poolhand.stores.sql.log import StreamLines, StreamLog
from poolhand.stores.sql.tables import Insert, Tables, TableWrite

AUDIT = Insert("poolhand_audit", {"at": "double precision", "count": "bigint", "lines": "bytea"})
# Transactions not yet committed, and those begun after the oldest of them, have an xid from xmin
# on: their records are numbered later. Records of other transactions that are visible have an xid
# below xmax, unless they were restored here and another server assigned it.
UNNUMBERED = """
DELETE FROM poolhand_audit WHERE no IN (
    SELECT no FROM poolhand_audit WHERE xid < pg_snapshot_xmin(pg_current_snapshot())
    OR xid >= pg_snapshot_xmax(pg_current_snapshot())
        AND xid IS DISTINCT FROM pg_current_xact_id_if_assigned()
    ORDER BY no LIMIT ?)
RETURNING no, at, count, lines
"""
NUMBER = """
INSERT INTO poolhand_log (stream, first, last, at, lines)
SELECT ?, given.* FROM unnest(?::bigint[], ?::bigint[], ?::double precision[], ?::bytea[]) AS given
"""
# Numbered or not. The records asked for were written not long ago.
MARKED = """
SELECT EXISTS (SELECT 1 FROM (
        SELECT at, lines FROM poolhand_audit ORDER BY no DESC LIMIT 200000) unnumbered
    WHERE at = ?1 AND lines = ?2)
OR EXISTS (SELECT 1 FROM (
        SELECT at, lines FROM poolhand_log WHERE stream = ?3 ORDER BY last DESC LIMIT 200000) read
    WHERE at = ?1 AND lines = ?2)
"""
AT_ONCE = 1000


class Mark(NamedTuple):
    """The first audit records that a transaction wrote: no other wrote the same ones."""

    at: float
    lines: bytes


class PostgresLog(StreamLog):
    """Streams numbered without gaps; `mark` proves that this transaction wrote to the audit."""

    def __init__(self, tables: Tables, locks: Locks) -> None:
        super().__init__(tables)
        self._locks = locks
        self.mark: Mark | None = None

    def gather(
        self, streams: Mapping[str, StreamLines], stamp: float, into: list[TableWrite]
    ) -> None:
        others = {name: lines for name, lines in streams.items() if name != STREAM}
        audit = [(stamp, *packed) for packed in streams.get(STREAM, StreamLines()).pack()]
        if audit:
            into.append((AUDIT, audit))
            self.mark = Mark(stamp, audit[0][2])
        if others:
            self._locks.take(self._tables, STREAMS, others)
            super().gather(others, stamp, into)

    def trim(self, stream: str, before: int) -> int:
        self._locks.take(self._tables, STREAMS, [stream])
        return super().trim(stream, before)

    def number(self) -> None:
        """Number the new audit records."""
        self._locks.take(self._tables, STREAMS, [STREAM])
        while found := self._tables.execute(UNNUMBERED, (AT_ONCE,)).fetchall():
            last = self.last(STREAM)
            rows = []
            for _, at, count, lines in sorted(found):
                rows.append((last + 1, last + count, at, lines))
                last += count
            self._tables.execute(NUMBER, (STREAM, *zip(*rows, strict=True)))
            if len(found) < AT_ONCE:
                return


def is_marked(tables: Tables, mark: Mark) -> bool:
    """Return whether the records of a mark exist."""
    return bool(tables.execute(MARKED, (mark.at, mark.lines, STREAM)).fetchone()[0])
