"""The wall: what a store promises, in four small ports behind one URL.

A store keeps and orders; who may enter, who is next and how a job changes is said by `rules`, which
every store asks; one suite of tests holds them all to it. A verb is all or nothing: what it returns
is written, what it raised has left no trace. Only a StoreError says that a store could not do it.
Verbs take durations: the store is the only clock of what it keeps. Audit records are written with
the change they tell of. Records of which there are many (`gc=False`) hold nothing that could lead
back to them, so that the garbage collector need not look through them.
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
