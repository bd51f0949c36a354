"""The records that configure pools, apps and farms."""

from poolhand.rules.lifecycle import Keep
from poolhand.rules.queue.backpressure import Backpressure
from poolhand.rules.queue.strategy import QueueStrategy
from poolhand.rules.scaling.pool_size import Autoscale, suggest_workers
from poolhand.rules.scaling.worker_count import FarmSettings, Verbosity
from poolhand.wire.codec import AllowPickle
from poolhand.wire.envelope import KeyRing
from poolhand.wire.limits import Limits
from poolhand.wire.payload import Wire

__all__ = [
    "AllowPickle",
    "Autoscale",
    "Backpressure",
    "FarmSettings",
    "Keep",
    "KeyRing",
    "Limits",
    "QueueStrategy",
    "Verbosity",
    "Wire",
    "suggest_workers",
]
