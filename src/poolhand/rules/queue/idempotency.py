"""Idempotency keys: one job per tenant and key, and one call per key."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Any, Generic

import msgspec

from poolhand.errors import IdempotencyConflict
from poolhand.rules.explain import is_same_task
from poolhand.rules.job import Job, Status
from poolhand.rules.json_values import Canonical
from poolhand.rules.queue.entry import E
from poolhand.rules.validation import shown

RERUN = frozenset({Status.FAILED, Status.CANCELLED, Status.EXPIRED})
KIND_BYTES = 8
DIGEST_AT = 13  # the position of the digest in the fields of a call record
MOST_PLAIN = 100_000  # values and letters of a call in memory that are compared

Owner = tuple[str | None, str]


class IdempotencyKeys(Generic[E]):
    """Maps each key to its job, until `ttl` seconds after the job's outcome.

    Keys of unfinished jobs are never dropped; of finished jobs at most `most` keys remain. Jobs of
    blocked submitters are tracked apart: if one is refused, the key still maps to its earlier job.
    """

    __slots__ = ("_finished", "_most", "_newcomers", "_owners", "_ttl")

    def __init__(self, ttl: float, most: int) -> None:
        self._ttl = ttl
        self._most = most
        self._owners: dict[Owner, E] = {}
        self._newcomers: dict[Owner, E] = {}
        self._finished: OrderedDict[Owner, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, job: Job, now: float) -> E | None:
        """Return the entry that already owns the key of this job."""
        owner = _owner(job)
        if owner is None:
            return None
        self._forget(now)
        return self._newcomers.get(owner) or self._owners.get(owner)

    def reserve(self, entry: E) -> None:
        """Reserve the key for the entry of a blocked submitter."""
        owner = _owner(entry.job)
        if owner is not None:
            self._newcomers[owner] = entry

    def release(self, entry: E) -> None:
        """End the reservation of an entry that was admitted or refused."""
        owner = _owner(entry.job)
        if owner is not None:
            self._newcomers.pop(owner, None)

    def hold(self, entry: E) -> None:
        """Map the key to an accepted job."""
        owner = _owner(entry.job)
        if owner is not None:
            self._owners[owner] = entry
            self._finished.pop(owner, None)

    def finish(self, entry: E, now: float) -> None:
        """Start the TTL of a key whose job is final; a rejected job frees its key at once."""
        owner = _owner(entry.job)
        if owner is None or self._owners.get(owner) is not entry:
            return
        if entry.job.status is Status.REJECTED:
            del self._owners[owner]
        else:
            self._finished[owner] = now + self._ttl
            self._forget(now)

    def drop(self, entry: E) -> None:
        """Free the key of a finished job before its TTL has passed."""
        owner = _owner(entry.job)
        if owner is not None and owner in self._finished and self._owners[owner] is entry:
            del self._finished[owner]
            del self._owners[owner]

    def limit(self, ttl: float, most: int, now: float) -> None:
        """Change the TTL and the number of keys."""
        self._ttl, self._most = ttl, most
        self._forget(now)

    def stands_for(self, entry: E, now: float) -> bool:
        """Return whether an entry still owns its key."""
        owner = _owner(entry.job)
        self._forget(now)
        return owner is not None and self._owners.get(owner) is entry

    def _forget(self, now: float) -> None:
        finished = self._finished
        while finished:
            owner, expires_at = next(iter(finished.items()))
            if expires_at > now and len(finished) <= self._most:
                return
            del finished[owner]
            del self._owners[owner]


def _owner(job: Job) -> Owner | None:
    return None if job.idempotency_key is None else (job.tenant, job.idempotency_key)


def may_rerun(kept: E, new: E) -> bool:
    """Return whether a new job may replace the job of its key: the same call, without success."""
    return kept.job.status in RERUN and new.is_same_call(kept)


def call_digest(
    kind: str,
    given: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
    canonical: Canonical,
) -> bytes | None:
    """Return a digest of the arguments of a call; None if they cannot be compared.

    Only digests of one `kind` are compared: the arguments of another version of a task, or given
    as other types, may look different and mean the same. For the same reason an argument that
    equals its default counts as not given.
    """
    essential: dict[str, bytes] = {}
    try:
        for name, value in given.items():
            written = canonical.write(value)
            default = parameters[name].default if name in parameters else Parameter.empty
            if default is Parameter.empty or canonical.write(default) != written:
                essential[name] = written
    except Exception:
        # Arguments may be of any type, and user code of theirs may raise anything.
        return None
    body = hashlib.sha256(Canonical().write(essential)).digest()
    return hashlib.sha256(kind.encode()).digest()[:KIND_BYTES] + body


class PlainCanonical(Canonical):
    """Writes a bounded amount of plain data; raises for any other object, and for more."""

    def __init__(self) -> None:
        super().__init__()
        self._left = MOST_PLAIN

    def write(self, value: Any) -> bytes:
        self._left -= len(value) if isinstance(value, str | bytes | bytearray) else 1
        if self._left < 0:
            raise ValueError("too much to compare")
        return super().write(value)

    def _reduced(self, value: Any) -> bytes:
        raise TypeError(f"a {type(value).__name__} is not plain data")


def function_digest(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bytes | None:
    """Return the digest of a call of any function, if its arguments are plain data."""
    if isinstance(fn, partial):
        # It holds arguments itself.
        return None
    try:
        found = signature(fn)
        given = found.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    return call_digest("function", given, found.parameters, PlainCanonical())


def key_conflict(name: str, key: str, id: str, other: str) -> IdempotencyConflict:
    """Return the error for a call of `name` whose key stands for job `id`, a call of `other`."""
    same = is_same_task(name, other)
    what = "with other arguments" if same else f"of {other}"
    cure = "what tells the calls apart" if same else "the name of the task"
    example = "" if same else f", such as {shown(f'{name}:{key}')}"
    return IdempotencyConflict(
        f"idempotency key {shown(key)} stands for job {id}, a call {what}; this call of "
        f"{name} was not submitted: a key stands for one call, so put {cure} into the key{example}",
        key=key,
        job_id=id,
    )


def may_be_same(one: bytes | None, other: bytes | None) -> bool:
    """Return whether two digests may be of the same call: equal, or not to be compared."""
    if one is None or other is None or one[:KIND_BYTES] != other[:KIND_BYTES]:
        return True
    return one == other


def is_same_stored_call(new: tuple[Job, bytes], kept: tuple[Job, bytes]) -> bool:
    """Return whether two jobs, each with its call record, may make the same call."""
    if not is_same_task(new[0].name, kept[0].name):
        return False
    return may_be_same(_digest_in(new[1]), _digest_in(kept[1]))


_fields = msgspec.msgpack.Decoder(list[msgspec.Raw])
_digest = msgspec.msgpack.Decoder(bytes | None)


def _digest_in(record: bytes) -> bytes | None:
    """Return the digest in a call record; None if there is none, as in those of older versions."""
    try:
        fields = _fields.decode(record)
        return _digest.decode(fields[DIGEST_AT]) if len(fields) > DIGEST_AT else None
    except msgspec.MsgspecError:
        return None
