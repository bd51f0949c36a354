"""Owners and claims in a SQL store: claim and settle jobs, renew and expire owners."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from poolhand.contract import Change, Claim, ClaimRequest, Extended, Lease, Owner, ReplacedJob
from poolhand.rules import audit, lifecycle
from poolhand.rules.explain import claimable
from poolhand.rules.job import Job
from poolhand.rules.queue.entry import age, comeback
from poolhand.rules.queue.strategy import round_robin
from poolhand.stores.sql import documents as sql_documents
from poolhand.stores.sql.facts import Pick
from poolhand.stores.sql.pools import StoredPool
from poolhand.stores.sql.rows import (
    END_OF,
    RUNNING,
    JobRow,
    decode_job,
    encode_course,
    moment,
    sought,
)
from poolhand.stores.sql.steps import Steps
from poolhand.stores.sql.tables import Tables
from poolhand.stores.sql.unit_of_work import TOKENS, json

CLAIMED = """
SELECT c.token, c.seq, c.pool, c.wished, j.id
FROM poolhand_claims c JOIN poolhand_jobs j ON j.seq = c.seq
WHERE c.stuck = 0 AND c.token IN (?*) /*pg FOR UPDATE OF c */
"""
STUCK = """
SELECT c.pool, j.key FROM poolhand_claims c JOIN poolhand_jobs j ON j.seq = c.seq
WHERE c.token = ? AND c.stuck = 1 /*pg FOR UPDATE OF c */
"""
STICK = "UPDATE poolhand_claims SET stuck = 1 WHERE token = ?"
ENROLL = """
INSERT INTO poolhand_owners (id, owner) VALUES (?, ?)
ON CONFLICT (id) DO UPDATE SET owner = excluded.owner
"""
RENEW = """
UPDATE poolhand_owners SET renewal = renewal + 1 WHERE id = ? AND buried = 0 RETURNING no
"""
RENEWED = """
SELECT token, CASE WHEN stuck = 0 THEN wished ELSE 0 END FROM poolhand_claims
WHERE owner = ? AND token IN (?*)
"""
LEASES = """
SELECT o.owner, o.renewal, o.buried, coalesce(c.held, 0)
    + (SELECT count(*) FROM poolhand_waits WHERE place = 0 AND owner = o.no)
FROM poolhand_owners o
LEFT JOIN (SELECT owner, count(*) AS held FROM poolhand_claims GROUP BY owner) c ON c.owner = o.no
ORDER BY o.no
"""
EXPIRE_OWNER = "UPDATE poolhand_owners SET buried = 1 WHERE id = ? AND renewal = ? RETURNING no"
BLOCKED_SUBMITTERS_OF = "SELECT seq FROM poolhand_waits WHERE place = 0 AND owner = ? ORDER BY seq"
STUCK_OF = "SELECT token FROM poolhand_claims WHERE owner = ? AND stuck = 1 ORDER BY token"
RUN_BY = """
SELECT c.token, c.slot, c.started, c.waited, c.course, j.id, j.ordered, j.brief
FROM poolhand_claims c JOIN poolhand_jobs j ON j.seq = c.seq
WHERE c.owner = ? AND c.stuck = 0 ORDER BY c.token /*pg FOR UPDATE OF c */
"""
CALLS = "SELECT seq, brief FROM poolhand_jobs WHERE seq IN (?*)"
LOOKS = 10  # attempts per claim to find jobs whose key has a permit left
RETOKEN = "UPDATE poolhand_claims SET token = ? WHERE token = ?"

_encode_owner = msgspec.msgpack.Encoder().encode
_decode_owner = msgspec.msgpack.Decoder(Owner).decode


class StoredLeases:
    """Claims jobs under tokens, settles and releases them."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._unit = steps.unit
        self._tables = steps.unit.tables
        self._execute = steps.unit.tables.execute
        self._good: dict[int, tuple[Any, ...]] = {}

    # Claiming

    def claim(self, wanted: ClaimRequest) -> list[Claim]:
        if not wanted.slots:
            return []
        overdue = self._steps.overdue()
        known = self._steps.pools
        if any(wanted.pools is None or known.no(no).spec.name in wanted.pools for no in overdue):
            # Once another write has expired the rest, there is something to claim.
            self._unit.topics.add("ready")
        busy = known.busy(wanted)
        owner = self._steps.owner(wanted.owner) if busy else None
        if owner is None:
            return []
        numbers = sorted(busy)
        turn = bisect_right(numbers, self._unit.numbers.last_pool)
        pools = [busy[no] for no in numbers[turn:] + numbers[:turn] if no not in overdue]
        starter = _Starter(self._steps, owner)
        claims = starter.take_aside(pools, wanted)
        take = starter.take if all(pool.gives_lots for pool in pools) else starter.take_one
        claims += take(pools, wanted.slots[len(claims) :])
        if claims:
            self._unit.numbers.last_pool = starter.last
        return claims

    # Settling

    def replace(
        self,
        changes: Sequence[Change],
        wanted: ClaimRequest | None = None,
        released: Sequence[int] = (),
    ) -> ReplacedJob:
        """Settle claimed jobs, free the slots of stuck jobs, then claim."""
        made = self.change_all(changes) if changes else ()
        if released:
            self.release(released)
        return ReplacedJob(made, () if wanted is None else tuple(self.claim(wanted)))

    def change_all(self, changes: Sequence[Change]) -> tuple[bool, ...]:
        """Settle claimed jobs, each only if its token is valid."""
        for row in self._tables.among(CLAIMED, [change.token for change in changes]):
            self._good[row[0]] = row
        self._steps.freed.update(claim[2] for claim in self._good.values())
        self._foresee(changes)
        made = tuple([self._change(change) for change in changes])
        self._steps.forget_owners()
        return made

    def _foresee(self, changes: Sequence[Change]) -> None:
        """Load in one go what jobs with sessions, or without an end, will need."""
        turns: dict[int, list[Job]] = {}
        rows = []
        for change in changes:
            job = change.job
            if job.session is None and job.status.terminal:
                continue
            claim = self._good.get(change.token)
            if claim is not None:
                rows.append(claim[1])
                turns.setdefault(claim[2], []).append(job)
        if len(rows) > 1:
            self._unit.load(rows)
            for no, jobs in turns.items():
                self._steps.pools.no(no).sessions.foresee(jobs, ending=True)

    def _change(self, change: Change) -> bool:
        unit, job = self._unit, change.job
        claim = self._good.get(change.token)
        if claim is None or claim[4] != job.id:
            return False
        if change.documents:
            if any(sql_documents.is_erased(unit.tables, put, unit.now) for put in change.documents):
                change = change.without_session()
                job = change.job
            elif sql_documents.put(unit.tables, change.documents, unit.now) is None:
                return False
        if change.log:
            unit.append_lines(change.log)
        token, seq, no, cancel_requested, _ = claim
        del self._good[token]
        pool = self._steps.pools.no(no)
        end = END_OF.get(job.status)
        alone = not change.stuck and job.session is job.idempotency_key is None
        if end is None or not alone or not pool.ends_lots:
            self._settle(pool, unit.row(seq), change)
            return True
        unit.lines.append((audit.OUTCOME, json(audit.ended(job))))
        unit.ended_claims.append(token)
        self._steps.record_end(pool, seq, job, end, bool(cancel_requested))
        pool.running -= 1
        return True

    def _settle(self, pool: StoredPool, row: JobRow, change: Change) -> None:
        steps, unit, job = self._steps, self._unit, change.job
        key, token = row.job.key, row.token
        if job.status.terminal:
            steps.end(row, job, audit.ended(job))
        elif row.cancel_requested:
            job = lifecycle.cancel(job, unit.at)
            steps.end(row, job, audit.ended(job))
        else:
            self._give_back(pool, row, change)
        # The row of the claim counts as the permit of its key, so it is deleted last.
        if change.stuck:
            steps.welcome(pool)
            self._execute(STICK, (token,))
        else:
            steps.vacate(pool, key)
            self._unit.ended_claims.append(token)

    def _give_back(self, pool: StoredPool, row: JobRow, change: Change) -> None:
        """Put a job back to wait for its next attempt."""
        unit, job = self._unit, change.job
        unit.note(audit.retried(job, unit.at))
        row.since = unit.now
        if change.wait is None and lifecycle.is_set_aside(job):
            row.job, row.by_wall, row.course = job, False, encode_course(job)
            pool.set_aside(row, unit.now)
            return
        row.job, wait, row.by_wall = comeback(job, change.wait, unit.at)
        row.course = encode_course(row.job)
        if change.puts_back:
            pool.put_back(row, unit.now - age(job, unit.at))
        else:
            pool.give_back(row, unit.now + wait, unit.now)

    def release(self, tokens: Sequence[int]) -> None:
        """Free the slots of stuck jobs."""
        for token in dict.fromkeys(tokens):
            claim = self._execute(STUCK, (token,)).fetchone()
            if claim is not None:
                self._steps.vacate(self._steps.pools.no(claim[0]), claim[1])
                self._unit.ended_claims.append(token)
        self._steps.forget_owners()

    # Owners

    def enroll(self, owner: Owner) -> None:
        self._execute(ENROLL, (owner.id, _encode_owner(owner)))

    def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        renewed = self._execute(RENEW, (sought(owner),)).fetchone()
        if renewed is None:
            return Extended(False, tuple(tokens))
        cancel_requested: dict[int, int] = dict(self._tables.among(RENEWED, tokens, renewed))
        lost = tuple([token for token in tokens if token not in cancel_requested])
        return Extended(
            True, lost, tuple([token for token in tokens if cancel_requested.get(token)])
        )

    def expire_owner(self, owner: str, renewal: int) -> list[Claim]:
        """Expire an owner; return its claims under new tokens.

        The tokens are new, so that no late write of the dead owner is accepted.
        """
        unit = self._unit
        expired = self._execute(EXPIRE_OWNER, (sought(owner), renewal)).fetchone()
        if expired is None:
            return []
        blocked_submitters = self._execute(BLOCKED_SUBMITTERS_OF, expired).fetchall()
        self._steps.withdraw_rows(*unit.load([seq for (seq,) in blocked_submitters]))
        self.release([token for (token,) in self._execute(STUCK_OF, expired).fetchall()])
        claims = []
        for token, slot, started, waited, record, id, ordered, call_record in self._execute(
            RUN_BY, expired
        ).fetchall():
            renewed = unit.numbers.next(TOKENS)
            self._execute(RETOKEN, (renewed, token))
            job = lifecycle.start(decode_job(id, ordered, record), moment(started), waited)
            claims.append(Claim(job, call_record, renewed, slot))
        self._steps.forget_owners()
        return claims


class _Starter:
    """Starts jobs for one owner, from each pool in turn; `last` is the last pool used."""

    def __init__(self, steps: Steps, owner: int) -> None:
        self.last = 0
        self._steps = steps
        self._unit = steps.unit
        self._owner = owner

    def take_aside(self, pools: Sequence[StoredPool], wanted: ClaimRequest) -> list[Claim]:
        """Claim jobs that were set aside under the causes in the request."""
        claims: list[Claim] = []
        for pool in pools:
            left = wanted.slots[len(claims) :]
            if pool.aside > 0 and left and wanted.causes:
                claims += self._of_causes(pool, wanted, left)
        return claims

    def _of_causes(
        self, pool: StoredPool, wanted: ClaimRequest, slots: Sequence[int]
    ) -> list[Claim]:
        """Claim the oldest jobs; a job whose key has no permit left does not block others."""
        claims, full = list[Claim](), set[str]()
        found = claimable(wanted.causes, pool.causes(), wanted.refused)
        for _ in range(LOOKS):
            known = len(full)
            claims += self._oldest(pool, found, slots[len(claims) :], full)
            if len(full) == known or len(claims) == len(slots) or not pool.has_slot:
                break
        return claims

    def _oldest(
        self, pool: StoredPool, found: frozenset[str], slots: Sequence[int], full: set[str]
    ) -> list[Claim]:
        """Start the oldest jobs of causes; skip the keys in `full`, and add keys without permit."""
        unit, claims, free = self._unit, list[Claim](), iter(slots)
        lots = [pool.waiting_for(cause, len(slots), full) for cause in sorted(found)]
        seqs = sorted(seq for lot in lots for seq in lot)[: len(slots)]
        records = dict(unit.tables.among(CALLS, seqs))
        for row in unit.load(seqs):
            if pool.take_aside(row, unit.now):
                row.call_record = records[row.seq]
                claims.append(self._start(pool, row, next(free)))
            elif row.job.key is not None:
                full.add(row.job.key)
        return claims

    def take(self, pools: Sequence[StoredPool], slots: Sequence[int]) -> list[Claim]:
        """Claim many jobs at once from pools where taking one affects no other."""
        turns = _turns(pools, len(slots))
        given: dict[StoredPool, Iterator[Pick]] = {}
        for pool, limit in Counter(turns).items():
            given[pool] = iter(pool.queue.take_lot(limit))
            pool.waiting -= limit
            pool.running += limit
        if turns:
            self.last = turns[-1].no
        now = self._unit.now
        claims = []
        for slot, pool in zip(slots, turns, strict=False):
            pick = next(given[pool], None)
            if pick is None:
                # A concurrent transaction was first: PostgreSQL skips rows that others have locked.
                continue
            seq, since, gate, id, ordered, course, call_record, *token = pick
            job = lifecycle.start(decode_job(id, ordered, course), self._unit.at, now - since)
            token = token or [self._unit.numbers.next(TOKENS)]
            kept = (token[0], seq, pool.no, gate, course)
            claims.append(self._claim(job, call_record, slot, kept))
        return claims

    def take_one(self, pools: Sequence[StoredPool], slots: Sequence[int]) -> list[Claim]:
        """Claim one after the other: each may open a gate or admit a blocked submitter."""
        claims = []
        for slot, (pool, row) in zip(slots, round_robin(pools, self._next), strict=False):
            claims.append(self._start(pool, row, slot))
        return claims

    def _start(self, pool: StoredPool, row: JobRow, slot: int) -> Claim:
        """Start a job that has left its place; admit the blocked submitters it made room for."""
        unit = self._unit
        self.last = pool.no
        job = lifecycle.start(row.job, unit.at, unit.now - row.since)
        kept = (unit.numbers.next(TOKENS), row.seq, pool.no, row.gate, row.course)
        claim = self._claim(job, row.call_record, slot, kept)
        unit.put(row, RUNNING)
        self._steps.welcome(pool)
        return claim

    def _next(self, pool: StoredPool) -> JobRow | None:
        return None if pool.no in self._steps.overdue() else pool.next(self._unit.now)

    def _claim(
        self, job: Job, call_record: bytes, slot: int, kept: tuple[int, int, int, str | None, Any]
    ) -> Claim:
        """Record that a job was started: its token, seq, pool, gate and course."""
        unit = self._unit
        unit.lines.append((audit.DEQUEUE, json(audit.dequeued(job, slot))))
        token, seq, pool, gate, course = kept
        run = (token, seq, pool, self._owner, slot, unit.stamp, job.waited, gate, course)
        unit.new_claims.append(run)
        return Claim(job, call_record, token, slot)


def _turns(pools: Sequence[StoredPool], limit: int) -> list[StoredPool]:
    """Return the pools to take the next jobs from, in turn, at most `limit`."""
    if len(pools) == 1:
        return [pools[0]] * min(limit, _claimable(pools[0]))
    left = {pool: _claimable(pool) for pool in pools}

    def count(pool: StoredPool) -> bool | None:
        left[pool] -= 1
        return True if left[pool] >= 0 else None

    return [pool for pool, _ in islice(round_robin(pools, count), limit)]


def _claimable(pool: StoredPool) -> int:
    """Count the jobs that a pool could start now."""
    return 0 if pool.paused else int(max(0, min(pool.queued, pool.limit - pool.running)))


def all_leases(tables: Tables) -> list[Lease]:
    """Return the leases of all owners."""
    return [
        Lease(_decode_owner(owner), renewal, held, bool(expired))
        for owner, renewal, expired, held in tables.execute(LEASES)
    ]
