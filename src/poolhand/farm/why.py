"""Why a stored job waits, asked by whoever holds its ticket."""

from __future__ import annotations

from poolhand.contract import Store
from poolhand.rules.explain import Explanation, Standing, explain


async def explain_stored(store: Store, id: str) -> Explanation:
    found = (await store.get([id]))[0]
    if found is None:
        return Explanation("gone", "it is not kept any more")
    return explain(Standing(found.job, None, parked=found.parked))
