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
from poolhand.contract.jobs import Insertion, Jobs, StoreTransaction
from poolhand.contract.log import Line, Log, Written
from poolhand.contract.records import (
    Added,
    Batch,
    Change,
    Claim,
    Entry,
    Extended,
    Filter,
    Lease,
    Order,
    Owner,
    Page,
    PoolRow,
    Promoted,
    Refusal,
    Replaced,
    Stored,
    Wanted,
)
from poolhand.contract.signals import Hint, Signals
from poolhand.contract.store import Store

__all__ = [
    "Added",
    "Batch",
    "Change",
    "Claim",
    "Documents",
    "Entry",
    "Extended",
    "Filter",
    "Hint",
    "Insertion",
    "Jobs",
    "Lease",
    "Line",
    "Log",
    "Order",
    "Owner",
    "Page",
    "PoolRow",
    "Promoted",
    "Put",
    "Refusal",
    "Replaced",
    "Signals",
    "Store",
    "StoreTransaction",
    "Stored",
    "Wanted",
    "Written",
]
