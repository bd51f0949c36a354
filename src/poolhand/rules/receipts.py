"""Receipts: the recorded state of a tool call, and which step is allowed next."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from poolhand.rules.streams import part

RECEIPTS = "receipt/"
SHARED = f"{RECEIPTS}shared/"


class Effect(StrEnum):
    """What a call does to the outside: nothing, the same if repeated, or something each time."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    ONCE = "once"


class ReceiptStage(StrEnum):
    """The stage of a call. A claimed call is running, or was running when its attempt ended."""

    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Receipt(Struct, frozen=True):
    """The record of one tool call; `call` is a digest of its arguments, `result` the stored bytes.

    An attempt at a job claims it under a fencing token; `run` is the run of that job. A failed call
    records the error, and whether it may be retried.
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
        """Whether the result of the call is known."""
        return self.stage in (ReceiptStage.SUCCEEDED, ReceiptStage.FAILED)


write = msgspec.msgpack.Encoder().encode
read = msgspec.msgpack.Decoder(Receipt).decode
read_names = msgspec.msgpack.Decoder(list[str]).decode


def receipts_of_run(run: str) -> str:
    """Return the key prefix of all receipts that are stored as long as a run."""
    return f"{RECEIPTS}run/{part(run)}/"


def receipts_of_session(tenant: str | None, session: str) -> str:
    """Return the key prefix of all receipts shared by the turns of a session."""
    return f"{RECEIPTS}session/{part(tenant or '')}/{part(session)}/"


def receipts_of_tenant(tenant: str | None) -> str:
    """Return the key prefix of all receipts shared by the jobs of a tenant."""
    return f"{RECEIPTS}tenant/{part(tenant or '')}/"


def tool_names(name: str) -> str:
    """Return the key of the document that lists the names of a tool, whatever its package is."""
    return f"tool-names/{part('.'.join(name.split('.')[-2:]))}"


def is_former(key: str) -> bool:
    """Return whether a receipt's key has the old format, without a scope.

    All such keys are digests, and sort before the keys of any scope.
    """
    return key.startswith(RECEIPTS) and "/" not in key.removeprefix(RECEIPTS)


class NextStep(StrEnum):
    """The next step for a call."""

    RUN = "run"
    REPLAY = "replay"
    WAIT = "wait"
    VERIFY = "verify"
    RAISE = "raise"
    CONFLICT = "conflict"


def rule(receipt: Receipt | None, is_same: bool, effect: Effect, is_live: bool) -> NextStep:
    """Return the next step for a call that has this receipt.

    `is_same`: the receipt has the same arguments. `is_live`: the attempt that claimed it still
    runs. A call with the effect `once` that may have happened is never repeated unverified.
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
