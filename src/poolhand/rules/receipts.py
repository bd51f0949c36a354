"""Receipts: what is known of a call of a tool, and what may be done about it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Effect(StrEnum):
    """What a call does outside: nothing, the same however often, or something each time."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class Stage(StrEnum):
    """How far a call is. One that is claimed is under way, or was when its attempt ended."""

    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Receipt(Struct, frozen=True):
    """The record of one call; `call` is a digest of its arguments, `result` is kept as written.

    It is claimed by an attempt at a job, under a token. A failure says what was raised, and whether
    it may be tried again.
    """

    tool: str
    stage: Stage
    call: bytes
    job: str
    token: int
    tries: int = 1
    result: bytes = b""
    error: str = ""
    retryable: bool = True


class Next(StrEnum):
    """What is to be done about a call."""

    RUN = "run"
    REPLAY = "replay"
    WAIT = "wait"
    VERIFY = "verify"
    RAISE = "raise"
    CONFLICT = "conflict"


def rule(receipt: Receipt | None, call: bytes, effect: Effect, is_live: bool) -> Next:
    """Say what is to be done about a call of which there is this receipt.

    `is_live`: the attempt that has claimed it still runs. Nothing that must happen once and may
    have happened is done again without asking.
    """
    if receipt is None:
        return Next.RUN
    if receipt.call != call:
        return Next.CONFLICT
    match receipt.stage:
        case Stage.SUCCEEDED:
            return Next.REPLAY
        case Stage.FAILED:
            return Next.RUN if receipt.retryable else Next.RAISE
        case Stage.CLAIMED if is_live:
            return Next.WAIT
        case Stage.CLAIMED | Stage.UNKNOWN:
            return Next.VERIFY if effect is Effect.ONCE else Next.RUN
