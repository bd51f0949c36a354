"""The store contract: what a store promises, in four small ports behind one URL.

A store persists and orders jobs; `rules` decides admission, order and transitions, and every store
calls it. One test suite checks all stores. A verb is atomic: if it returns, its changes are
committed; if it raises, nothing changed. A store reports failures only as StoreError. Verbs take
durations, because the store's clock is the only one that counts for what it stores. Audit records
are written with the change they describe. Records that exist in large numbers (`gc=False`) cannot
be part of a reference cycle, so the garbage collector need not scan them.
"""

from __future__ import annotations

from poolhand.contract.documents import Documents, Put
from poolhand.contract.jobs import Jobs, StoreTransaction, UserInsertion
from poolhand.contract.log import Log, LogEntry, LogLine
from poolhand.contract.records import (
    Added,
    Admission,
    Change,
    Claim,
    ClaimRequest,
    Extended,
    Filter,
    JobBatch,
    JobPage,
    JobRequest,
    Lease,
    Owner,
    PoolRow,
    Promoted,
    Refusal,
    ReplacedJob,
    Stored,
)
from poolhand.contract.signals import Hint, Signals
from poolhand.contract.store import Store

__all__ = [
    "Added",
    "JobBatch",
    "Change",
    "Claim",
    "Documents",
    "Admission",
    "Extended",
    "Filter",
    "Hint",
    "UserInsertion",
    "Jobs",
    "Lease",
    "LogLine",
    "Log",
    "JobRequest",
    "Owner",
    "JobPage",
    "PoolRow",
    "Promoted",
    "Put",
    "Refusal",
    "ReplacedJob",
    "Signals",
    "Store",
    "StoreTransaction",
    "Stored",
    "ClaimRequest",
    "LogEntry",
]
