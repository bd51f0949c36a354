"""The store contract: what a store promises: jobs, documents, log and signals behind one URL.

A store persists and orders jobs; `rules` decides admission, order and transitions, and every store
calls it. One test suite checks all stores. A verb is atomic: if it returns, its changes are
committed; if it raises, nothing changed. A store reports failures only as StoreError. Verbs take
durations, because the store's clock is the only one that counts for what it stores. Audit records
are written with the change they describe. Records that exist in large numbers (`gc=False`) cannot
be part of a reference cycle, so the garbage collector need not scan them.
"""

from __future__ import annotations

from poolhand.contract.ports import Hint, Store, StoreTransaction, UserInsertion
from poolhand.contract.records import (
    Added,
    Admission,
    Change,
    Claim,
    ClaimRequest,
    Document,
    Extended,
    Filter,
    JobBatch,
    JobPage,
    JobRequest,
    Lease,
    LogEntry,
    LogLine,
    Owner,
    PoolRow,
    Promoted,
    Put,
    Refusal,
    ReplacedJob,
    Stored,
)

__all__ = [
    "Added",
    "Admission",
    "Change",
    "Claim",
    "ClaimRequest",
    "Document",
    "Extended",
    "Filter",
    "Hint",
    "JobBatch",
    "JobPage",
    "JobRequest",
    "Lease",
    "LogEntry",
    "LogLine",
    "Owner",
    "PoolRow",
    "Promoted",
    "Put",
    "Refusal",
    "ReplacedJob",
    "Store",
    "StoreTransaction",
    "Stored",
    "UserInsertion",
]
