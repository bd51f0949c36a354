"""A PostgreSQL store whose tokens are renumbered without gaps, as those of other stores are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from poolhand.contract import Change, Claim, ClaimRequest, Extended, LogLine, ReplacedJob
from poolhand.stores.postgres.store import PostgresStore

NO_TOKEN = 1 << 60


class Renumbered(PostgresStore):
    """Gives every token the number of its first appearance."""

    _shown: dict[int, int]
    _real: dict[int, int]

    async def open(self) -> None:
        self._shown, self._real = {}, {}
        await super().open()

    async def replace(
        self,
        changes: Sequence[Change] = (),
        wanted: ClaimRequest | None = None,
        released: Sequence[int] = (),
    ) -> ReplacedJob:
        real = [replace(change, token=self._token(change.token)) for change in changes]
        replaced = await super().replace(real, wanted, [self._token(one) for one in released])
        return ReplacedJob(replaced.made, tuple(self._renumber(replaced.claims)))

    async def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        back = {self._token(token): token for token in tokens}
        told = await super().extend(owner, list(back))
        lost = tuple([back[token] for token in told.lost])
        return Extended(told.alive, lost, tuple([back[token] for token in told.cancel_requested]))

    async def expire_owner(self, owner: str, renewal: int) -> list[Claim]:
        return self._renumber(await super().expire_owner(owner, renewal))

    async def append(self, lines: Sequence[LogLine]) -> frozenset[int]:
        back = {self._token(line.token): line.token for line in lines if line.token is not None}
        real = {shown: token for token, shown in back.items()}
        lost = await super().append(
            [one if one.token is None else replace(one, token=real[one.token]) for one in lines]
        )
        return frozenset(back[token] for token in lost)

    def _renumber(self, claims: Iterable[Claim]) -> list[Claim]:
        shown = []
        for claim in claims:
            number = len(self._shown) + 1
            self._shown[claim.token], self._real[number] = number, claim.token
            shown.append(replace(claim, token=number))
        return shown

    def _token(self, shown: int) -> int:
        return self._real.get(shown, NO_TOKEN + shown)
