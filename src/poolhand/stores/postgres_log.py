"""The log of a PostgreSQL store, to which many may write at once."""

from __future__ import annotations

from collections.abc import Mapping

from poolhand.rules.audit import STREAM
from poolhand.stores.postgres_locks import STREAMS, Locks
from poolhand.stores.sql_log import StreamLog, Text, in_rows, pack
from poolhand.stores.sql_tables import Tables

AUDIT = """
INSERT INTO poolhand_audit (at, count, lines)
SELECT ?::double precision, given.* FROM unnest(?::bigint[], ?::bytea[]) AS given
RETURNING xid::text
"""
# What is not yet committed, and what was begun before it, has a number from xmin on.
UNNUMBERED = """
DELETE FROM poolhand_audit WHERE no IN (
    SELECT no FROM poolhand_audit WHERE xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY no LIMIT ?)
RETURNING no, at, count, lines
"""
NUMBER = """
INSERT INTO poolhand_log (stream, first, last, at, lines)
SELECT ?, given.* FROM unnest(?::bigint[], ?::bigint[], ?::double precision[], ?::bytea[]) AS given
"""
AT_ONCE = 1000


class PostgresLog(StreamLog):
    """Streams whose numbers have no gaps; `xid` is that of the transaction that wrote records."""

    def __init__(self, tables: Tables, locks: Locks) -> None:
        super().__init__(tables)
        self._locks = locks
        self.xid: str | None = None

    def write(self, streams: Mapping[str, list[Text]], stamp: float) -> None:
        others = {name: texts for name, texts in streams.items() if name != STREAM and texts}
        audit = streams.get(STREAM)
        if audit:
            parts = list(in_rows(audit))
            counts, packed = [len(part) for part in parts], [pack(part) for part in parts]
            self.xid = self._tables.execute(AUDIT, (stamp, counts, packed)).fetchone()[0]
        if others:
            self._locks.take(self._tables, STREAMS, others)
            super().write(others, stamp)

    def trim(self, stream: str, before: int) -> int:
        self._locks.take(self._tables, STREAMS, [stream])
        return super().trim(stream, before)

    def number(self) -> None:
        """Give numbers to what has come into the audit."""
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
