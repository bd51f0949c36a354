"""Receipts: what is known of a call of a tool, and what may be done about it."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from poolhand.rules.streams import part

RECEIPTS = "receipt/"
SHARED = f"{RECEIPTS}shared/"


class Effect(StrEnum):
    """What a call does outside: nothing, the same however often, or something each time."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class ReceiptStage(StrEnum):
    """How far a call is. One that is claimed is under way, or was when its attempt ended."""

    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Receipt(Struct, frozen=True):
    """The record of one call; `call` is a digest of its arguments, `result` is kept as written.

    It is claimed by an attempt at a job, under a token; `run` is that of the job. A failure says
    what was raised, and whether it may be tried again.
    """

    tool: str
    stage: ReceiptStage
    call: bytes
    job: str
    token: int
    tries: int = 1
    result: bytes = b""
    error: str = ""
    retryable: bool = True
    run: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether it is known how the call ended."""
        return self.stage in (ReceiptStage.SUCCEEDED, ReceiptStage.FAILED)


write = msgspec.msgpack.Encoder().encode
read = msgspec.msgpack.Decoder(Receipt).decode


def receipts_of_run(run: str) -> str:
    """Return how the keys of all receipts begin that are kept as long as a run."""
    return f"{RECEIPTS}run/{part(run)}/"


def receipts_of_session(tenant: str | None, session: str) -> str:
    """Return how the keys of all receipts begin that hold for the turns of a session."""
    return f"{RECEIPTS}session/{part(tenant or '')}/{part(session)}/"


def receipts_of_tenant(tenant: str | None) -> str:
    """Return how the keys of all receipts begin that hold for the jobs of a tenant."""
    return f"{RECEIPTS}tenant/{part(tenant or '')}/"


def is_former(key: str) -> bool:
    """Tell whether a receipt is of the time when keys did not name their scope.

    All such keys are digests, and come before those of any scope.
    """
    return key.startswith(RECEIPTS) and "/" not in key.removeprefix(RECEIPTS)


class NextStep(StrEnum):
    """What is to be done about a call."""

    RUN = "run"
    REPLAY = "replay"
    WAIT = "wait"
    VERIFY = "verify"
    RAISE = "raise"
    CONFLICT = "conflict"


def rule(receipt: Receipt | None, is_same: bool, effect: Effect, is_live: bool) -> NextStep:
    """Say what is to be done about a call of which there is this receipt.

    `is_same`: it is about the same arguments. `is_live`: the attempt that has claimed it still
    runs. Nothing that must happen once and may
    have happened is done again without asking.
    """
    if receipt is None:
        return NextStep.RUN
    if not is_same:
        return NextStep.CONFLICT
    match receipt.stage:
        case ReceiptStage.SUCCEEDED:
            return NextStep.REPLAY
        case ReceiptStage.FAILED:
            return NextStep.RUN if receipt.retryable else NextStep.RAISE
        case ReceiptStage.CLAIMED if is_live:
            return NextStep.WAIT
        case ReceiptStage.CLAIMED | ReceiptStage.UNKNOWN:
            return NextStep.VERIFY if effect is Effect.ONCE else NextStep.RUN
