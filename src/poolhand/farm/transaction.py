"""Transactions: jobs that are taken together with the user's own writes, or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod

from poolhand.contract import Order
from poolhand.errors import UsageError
from poolhand.rules.backpressure import Policy, Unbounded


class Transaction(ABC):
    """Writes of the user in the store's own file, and jobs that go with them."""

    async def add(self, order: Order, policy: Policy) -> None:
        """Keep an order for the commit; it is placed right after."""
        if not isinstance(policy, Unbounded):
            raise UsageError(
                f"pool {order.job.pool!r} may refuse a job ({policy}), which a transaction cannot "
                "wait for; submit it after the commit, or use an unbounded pool"
            )
        if order.job.idempotency_key is not None:
            raise UsageError(
                "a job of a transaction is taken when it commits, so it cannot join another one "
                "by its idempotency_key; leave the key out"
            )
        await self._keep(order)

    @abstractmethod
    async def _keep(self, order: Order) -> None: ...
