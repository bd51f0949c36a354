"""What does not add up in the tables of a SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

# Each finds the jobs or pools for which something does not hold that must hold after every commit.
RULES = {
    "a job is nowhere, or in two places": """
        SELECT id FROM jobs j WHERE
            (SELECT count(*) FROM waits WHERE seq = j.seq)
            + (SELECT count(*) FROM claims WHERE seq = j.seq AND stuck = 0)
            + (SELECT count(*) FROM ends WHERE seq = j.seq) <> 1
    """,
    "a place is held by a job that is not there": """
        SELECT seq FROM (SELECT seq FROM waits UNION ALL SELECT seq FROM ends
            UNION ALL SELECT seq FROM claims UNION ALL SELECT holder FROM sessions
            UNION ALL SELECT seq FROM keys)
        WHERE seq NOT IN (SELECT seq FROM jobs)
    """,
    "a job is between two places": "SELECT seq FROM waits WHERE place = 5",
    "a pool does not know who waits": """
        SELECT name FROM pools p WHERE
            queued <> (SELECT count(*) FROM waits WHERE pool = p.no AND place = 4)
            OR scheduled <> (SELECT count(*) FROM waits WHERE pool = p.no AND place = 1)
            OR parked <> (SELECT count(*) FROM waits WHERE pool = p.no AND place = 0)
            OR waiting <> (SELECT count(*) FROM waits WHERE pool = p.no AND place > 0)
    """,
    "a pool does not know what runs": """
        SELECT name FROM pools p
        WHERE running <> (SELECT count(*) FROM claims WHERE pool = p.no)
    """,
    "a pool does not know what is over": """
        SELECT name FROM pools p WHERE completed + failed + cancelled + expired + rejected
            <> (SELECT count(*) FROM ends WHERE pool = p.no)
    """,
    "a pool does not know its keys": """
        SELECT name FROM pools p WHERE keys
            <> (SELECT count(*) FROM keys WHERE pool = p.no AND ended IS NOT NULL)
    """,
    "a lane does not know its jobs": """
        SELECT l.key FROM lanes l WHERE queued <> (
            SELECT count(*) FROM waits w JOIN jobs j ON j.seq = w.seq
            WHERE w.pool = l.pool AND w.place = 4 AND j.key = l.key AND w.rank = l.no)
    """,
    "a session is held by a job that is over or blocked": """
        SELECT line FROM sessions s
        WHERE holder NOT IN (SELECT seq FROM claims) AND holder NOT IN (
            SELECT seq FROM waits WHERE place IN (1, 3, 4))
    """,
    "a turn waits for a session that nobody holds": """
        SELECT seq FROM waits w WHERE place = 2 AND NOT EXISTS (
            SELECT 1 FROM sessions WHERE pool = w.pool AND line = w.gate)
    """,
    "numbers of the log have gaps": """
        SELECT stream FROM log a WHERE EXISTS (
            SELECT 1 FROM log WHERE stream = a.stream AND last > a.last)
        AND NOT EXISTS (SELECT 1 FROM log WHERE stream = a.stream AND first = a.last + 1)
    """,
}


def faults(path: Path) -> Iterator[str]:
    """Yield what is wrong in a file that nobody is writing to."""
    connection = sqlite3.connect(path)
    try:
        for what, text in RULES.items():
            for (found,) in connection.execute(text):
                yield f"{what}: {found}"
    finally:
        connection.close()
