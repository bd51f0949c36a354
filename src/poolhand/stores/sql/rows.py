"""Jobs as rows of a SQL store's tables, and as the entries that the rules use."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from poolhand.contract import Stored
from poolhand.rules import lifecycle
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.queue.entry import Entry, Window, seconds
from poolhand.rules.queue.idempotency import is_same_stored_call
from poolhand.rules.validation import is_writable

# Where a job is. Places up to MOVING are rows of `waits`. A job that is MOVING has left one place
# and not yet reached the next; no commit ever contains it.
BLOCKED_SUBMITTER, SCHEDULED, SESSION, KEY, QUEUED, MOVING, RUNNING, OVER = range(8)
PLACES = {
    BLOCKED_SUBMITTER: (Status.QUEUED, None),
    SCHEDULED: (Status.SCHEDULED, None),
    SESSION: (Status.BLOCKED, "session"),
    KEY: (Status.BLOCKED, "key"),
    QUEUED: (Status.QUEUED, None),
    MOVING: (Status.QUEUED, None),
}
ENDS = (
    Status.COMPLETED,
    Status.FAILED,
    Status.CANCELLED,
    Status.EXPIRED,
    Status.REJECTED,
)
END_OF = {status: number for number, status in enumerate(ENDS)}
FAILED = END_OF[Status.FAILED]
NEVER_IN = -1.0  # `due_at` of a job that a user's transaction wrote and that is not admitted yet
NOWHERE = "\ue000 poolhand: what could not be kept \ue000"

encode = msgspec.msgpack.Encoder().encode


class JobTerms(Struct, frozen=True, array_like=True):
    """The terms of a submit, except the job's id: often the same for a whole batch."""

    pool: str
    pool_id: str
    submitted_at: datetime
    name: str
    submitted_by: str
    key: str
    priority: int
    session: str | None
    tenant: str | None
    user: str | None
    idempotency_key: str | None
    run_at: datetime | None
    expires_at: datetime | None
    continues: str | None


terms_of = attrgetter(*JobTerms.__struct_fields__)
_decode_terms = msgspec.msgpack.Decoder(JobTerms).decode


class Course(Struct, frozen=True, array_like=True):
    """The fields of a job that change after its submission."""

    status: Status
    blocked_on: str | None
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    waited: float | None
    ran: float | None
    attempts: int
    crashes: int
    result: Any
    error: Fault | None
    rejection_reason: str | None
    rejection_policy: str | None
    marks: tuple[str, ...]
    waits_for: str | None = None


_course_of = attrgetter(*Course.__struct_fields__)
_decode_course = msgspec.msgpack.Decoder(Course).decode


def encode_course(job: Job) -> bytes:
    """Return the encoded course of a job."""
    return encode(_course_of(job))


def encode_terms(job: Job) -> bytes:
    """Return the encoded terms of a job."""
    return encode(terms_of(job))


def decode_job(id: str, ordered: bytes, course: bytes | None) -> Job:
    """Decode a job from its id, its terms (`ordered`) and its course."""
    draft = _draft(ordered)
    if course is None:
        return replace(draft, id=id)
    return replace(draft, id=id, **asdict(_decode_course(course)))


def submit_of(ordered: bytes) -> tuple[float, str | None]:
    """Return when and for which user a job was submitted; 1970 if that cannot be decoded."""
    try:
        terms = _decode_terms(ordered)
    except msgspec.MsgspecError:
        return 0.0, None
    return seconds(terms.submitted_at), terms.user


@lru_cache(maxsize=100)
def _draft(ordered: bytes) -> Job:
    """Return a job without id from its terms; cached, as many jobs have the same."""
    return Job(id="", status=Status.QUEUED, **asdict(_decode_terms(ordered)))


# All columns about a job except `brief`, its call record: the fields of JobFacts.
FACTS = """
SELECT j.seq, j.id, j.pool, j.closes_at, j.ordered,
    w.place, w.rank, w.turn, w.since, w.ready_at, w.due_at, w.by_wall, w.gate, w.crowd, w.owner,
    w.course, c.token, c.owner, c.started, c.waited, c.wished, c.course, e.dead, e.wished, e.course
"""
PLACED = """
LEFT JOIN poolhand_waits w ON w.seq = j.seq
LEFT JOIN poolhand_claims c ON c.seq = j.seq AND c.stuck = 0
LEFT JOIN poolhand_ends e ON e.seq = j.seq
"""
BY_SEQ = f"{FACTS} FROM poolhand_jobs j {PLACED} WHERE j.seq = ?"
BY_SEQS = f"{FACTS} FROM poolhand_jobs j {PLACED} WHERE j.seq IN (?*)"
BY_ID = f"{FACTS} FROM poolhand_jobs j {PLACED} WHERE j.id = ?"
BY_IDS = f"{FACTS} FROM poolhand_jobs j {PLACED} WHERE j.id IN (?*)"


class JobFacts(NamedTuple):
    """The columns about a job: as submitted, waiting (`place`), running (`token`), `over`."""

    seq: int
    id: str
    pool: int
    closes_at: float | None
    ordered: bytes
    place: int | None
    rank: float
    turn: int
    since: float
    ready_at: float | None
    due_at: float | None
    by_wall: int | None
    gate: str | None
    crowd: str | None
    submitter: int | None
    returned: bytes | None
    token: int
    owner: int
    started: float
    waited: float
    cancel_requested: int | None
    rerun: bytes | None
    dead: int | None
    cancel_was_requested: int | None
    over: bytes | None

    def job(self) -> Job:
        """Return the job in its present state."""
        if self.over is not None:
            return decode_job(self.id, self.ordered, self.over)
        if self.place is not None:
            waiting = decode_job(self.id, self.ordered, self.returned)
            return lifecycle.place(waiting, *PLACES[self.place])
        begun = decode_job(self.id, self.ordered, self.rerun)
        return lifecycle.start(begun, moment(self.started), self.waited)

    def stored(self) -> Stored:
        """Return the job as callers see it."""
        cancel_requested = bool(self.cancel_requested or self.cancel_was_requested)
        return Stored(
            self.job(), self.place == BLOCKED_SUBMITTER, cancel_requested, bool(self.dead)
        )


def moment(number: float) -> datetime:
    """Return the UTC datetime of a timestamp."""
    return datetime.fromtimestamp(number, UTC)


def sought(text: str) -> str:
    """Return a text to search for; a text that no table can hold becomes one without matches."""
    return text if text.isprintable() or is_writable(text) else NOWHERE


class JobRow(Entry):
    """A job at the desk of its pool; its place, `where`, is written with the unit of work.

    `seq` is its number in all tables. `rank` and `turn` are its sort position where it waits. A
    `fresh` row is not in the tables yet. `course` is its encoded course from when it last began to
    wait again.
    """

    __slots__ = (
        "by_wall",
        "call_record",
        "cancel_requested",
        "course",
        "crowd",
        "dead",
        "due_at",
        "fresh",
        "gate",
        "in_waits",
        "owner",
        "pool",
        "rank",
        "since",
        "token",
        "turn",
        "where",
    )

    def __init__(self, job: Job, pool: int, since: float, window: Window | None = None) -> None:
        super().__init__(job, window)
        self.pool = pool
        self.since = since
        self.where = MOVING
        self.call_record = b""
        self.rank: float = 0
        self.turn = 0
        self.token = 0
        self.due_at: float | None = None
        self.owner: int | None = None
        self.gate: str | None = None
        self.crowd: str | None = None
        self.course: bytes | None = None
        self.by_wall = self.cancel_requested = self.dead = self.in_waits = self.fresh = False

    def is_same_call(self, kept: JobRow) -> bool:
        return is_same_stored_call((self.job, self.call_record), (kept.job, kept.call_record))

    @property
    def submitter_blocked(self) -> bool:
        return self.where == BLOCKED_SUBMITTER

    @property
    def newcomer(self) -> bool:
        """Return whether a user's transaction wrote it and it is not admitted yet."""
        return self.where == SCHEDULED and self.due_at == NEVER_IN

    @property
    def set_aside(self) -> bool:
        """Return whether it waits for a cause only."""
        return self.where == SCHEDULED and self.due_at is None

    @property
    def closes_at(self) -> float | None:
        return None if self.window is None else self.window.closes_at

    def stored(self) -> Stored:
        return Stored(self.job, self.submitter_blocked, self.cancel_requested, self.dead)


def row_of(facts: JobFacts, now: float, at: datetime) -> JobRow:
    """Return a job as its desk needs it."""
    row = JobRow(facts.job(), facts.pool, facts.since)
    row.seq = facts.seq
    opens_at = None
    if facts.over is not None:
        row.where, row.dead, row.cancel_requested = (
            OVER,
            bool(facts.dead),
            bool(facts.cancel_was_requested),
        )
        return row
    if facts.place is None:
        row.where, row.token, row.owner = RUNNING, facts.token, facts.owner
        row.cancel_requested, row.course = bool(facts.cancel_requested), facts.rerun
    else:
        row.where, row.rank, row.turn, row.in_waits = facts.place, facts.rank, facts.turn, True
        row.ready_at = facts.since if facts.ready_at is None else facts.ready_at
        row.gate, row.crowd, row.owner = facts.gate, facts.crowd, facts.submitter
        row.by_wall, row.due_at, row.course = bool(facts.by_wall), facts.due_at, facts.returned
        opens_at = facts.due_at
        if row.by_wall and opens_at is not None:
            opens_at = now + (opens_at - seconds(at))
    if opens_at is not None or facts.closes_at is not None:
        row.window = Window(opens_at, facts.closes_at)
    return row
