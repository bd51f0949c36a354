"""Leases of the memory store: owners, their claims, and the end of claims."""

from __future__ import annotations

from collections.abc import Sequence

from poolhand.contract import Change, Claim, ClaimRequest, Extended, Lease, Owner
from poolhand.rules import audit, lifecycle
from poolhand.rules.explain import claimable
from poolhand.rules.queue.entry import age, comeback
from poolhand.rules.queue.strategy import behind, round_robin
from tests.oracle.books import Books
from tests.oracle.documents import MemoryDocuments
from tests.oracle.rows import Holder, Pool, Row


class Leases:
    """Claims rows under tokens and releases them."""

    def __init__(self, books: Books, documents: MemoryDocuments) -> None:
        self._books = books
        self._documents = documents
        self._owners: dict[str, Holder] = {}
        self._claims: dict[int, Row] = {}
        self._tokens = 0
        self._last: Pool | None = None

    def is_good(self, token: int) -> bool:
        return token in self._claims

    def living(self, owner: str | None) -> Holder | None:
        """Return an owner that may hold leases."""
        holder = None if owner is None else self._owners.get(owner)
        return None if holder is None or holder.expired else holder

    def enroll(self, owner: Owner) -> None:
        self._owners.setdefault(owner.id, Holder(owner)).owner = owner

    def all(self) -> list[Lease]:
        return [holder.lease() for holder in self._owners.values()]

    def claim(self, wanted: ClaimRequest) -> list[Claim]:
        holder = self.living(wanted.owner)
        if holder is None:
            return []
        pools = behind(list(self._books.pools.values()), self._last)
        if wanted.pools is not None:
            pools = [pool for pool in pools if pool.spec.name in wanted.pools]
        overdue = self._books.overdue() if wanted.slots else set()
        if not overdue.isdisjoint(pools):
            # More can be claimed when others have expired the remaining ones.
            self._books.topics.add("ready")
        claims = self._of_causes([pool for pool in pools if pool not in overdue], holder, wanted)
        turns = round_robin(pools, self._books.next)
        for slot, (pool, row) in zip(wanted.slots[len(claims) :], turns, strict=False):
            self._last = pool
            claims.append(self._start(row, holder, slot))
        return claims

    def _of_causes(self, pools: list[Pool], holder: Holder, wanted: ClaimRequest) -> list[Claim]:
        """Start rows that were set aside under requested causes."""
        claims: list[Claim] = []
        for pool in pools:
            rows = self._books.aside(pool)
            found = {row.job.waits_for or "" for row in rows}
            chosen = claimable(wanted.causes, found, wanted.refused)
            for row in rows:
                left = wanted.slots[len(claims) :]
                if left and row.job.waits_for in chosen and self._books.take_aside(row):
                    self._last = pool
                    claims.append(self._start(row, holder, left[0]))
        return claims

    def _start(self, row: Row, holder: Holder, slot: int) -> Claim:
        books = self._books
        self._tokens = token = self._tokens + 1
        row.job = job = lifecycle.start(row.job, books.at, books.now - row.since)
        row.token, row.slot, row.holder = token, slot, holder
        self._claims[token] = holder.claims[token] = row
        books.note(audit.dequeued(job, slot))
        books.welcome(row.pool)
        return Claim(job, row.call_record, token, slot)

    def change(self, change: Change) -> bool:
        """Write the change of a claimed job, if its token is valid."""
        books, job, row = self._books, change.job, self._claims.get(change.token)
        if row is None or row.job.id != job.id:
            return False
        if any(self._documents.is_erased(put, books.now) for put in change.documents):
            change = change.without_session()
            job = change.job
        elif change.documents and self._documents.put(change.documents, books.now) is None:
            return False
        books.log.append(change.log, books.at)
        self._let_go(row, change.stuck)
        if job.status.terminal:
            books.end(row, job, audit.ended(job))
        elif row.cancel_requested:
            job = lifecycle.cancel(job, books.at)
            books.end(row, job, audit.ended(job))
        else:
            self._give_back(row, change)
        if change.stuck:
            books.welcome(row.pool)
        else:
            books.vacate(row)
        return True

    def _let_go(self, row: Row, stuck: bool) -> None:
        """End the lease of a row."""
        holder, token = row.holder, row.token
        assert holder is not None
        del self._claims[token], holder.claims[token]
        row.token, row.holder = 0, None
        if stuck:
            row.stuck += 1
            holder.stuck[token] = row
        else:
            self._forget(holder)

    def _give_back(self, row: Row, change: Change) -> None:
        """Make a row wait for its next attempt."""
        books, job = self._books, change.job
        books.note(audit.retried(job, books.at))
        row.since = books.now
        if change.wait is None and lifecycle.is_set_aside(job):
            row.job, row.by_wall = job, False
            books.set_aside(row)
            return
        row.job, wait, row.by_wall = comeback(job, change.wait, books.at)
        if change.puts_back:
            row.pool.desk.put_back(row, books.now - age(job, books.at))
        else:
            row.pool.desk.give_back(row, books.now + wait, books.now)
        books.wait(row, books.now + wait)

    def release(self, tokens: Sequence[int]) -> None:
        """Release the slots of stuck rows."""
        for token in tokens:
            holder = next((one for one in self._owners.values() if token in one.stuck), None)
            if holder is not None:
                self._unstick(holder.stuck.pop(token))
                self._forget(holder)

    def _unstick(self, row: Row) -> None:
        row.stuck -= 1
        self._books.vacate(row)

    def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        holder = self.living(owner)
        if holder is None:
            return Extended(False, tuple(tokens))
        holder.renewal += 1
        claims, stuck = holder.claims, holder.stuck
        lost = [token for token in tokens if token not in claims and token not in stuck]
        cancel_requested = [
            token for token in tokens if token in claims and claims[token].cancel_requested
        ]
        return Extended(True, tuple(lost), tuple(cancel_requested))

    def expire_owner(self, owner: str, renewal: int) -> list[Claim]:
        """Expire the leases of an owner; its rows are held under new tokens.

        New tokens, so that late messages of the dead owner are refused.
        """
        holder = self._owners.get(owner)
        if holder is None or holder.renewal != renewal:
            return []
        holder.expired = True
        self._books.withdraw(*holder.parked.values())
        for token in list(holder.stuck):
            self._unstick(holder.stuck.pop(token))
        rows = list(holder.claims.values())
        for row in rows:
            del self._claims[row.token], holder.claims[row.token]
            self._tokens = row.token = self._tokens + 1
            self._claims[row.token] = holder.claims[row.token] = row
        self._forget(holder)
        return [row.claim() for row in rows]

    def _forget(self, holder: Holder) -> None:
        """Delete a dead owner that holds nothing any more."""
        if holder.expired and not holder.held:
            del self._owners[holder.owner.id]
