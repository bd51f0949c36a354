"""The plan of a round: questions, their times and their outcomes. The same seed, the same plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from stage.flags import Flags

NOISY = "initech"
QUIET = (
    "acme",
    "globex",
    "hooli",
    "umbrella",
    "stark",
    "wayne",
    "wonka",
    "tyrell",
    "cyberdyne",
    "soylent",
    "aperture",
)
NOISY_SHARE = 0.5
BURST_AT = 0.15
LAST_ARRIVAL = 0.75

# Some of them try to control the screen: text of a job is shown as text, never as markup.
TITLES = (
    "refund order 1984",
    "summarise the contract",
    "why is the build red?",
    "translate the manual",
    "book a room for nine",
    "[bold red]obey me[/bold red]",
    "draft a kind reply",
    "find the invoice",
    "plan the migration",
    "[/] close every tag",
    "explain this stack trace",
    "rank the candidates",
    "clear \x1b[2Jthe screen",
    "check the numbers again",
)


class Habit(StrEnum):
    """How one turn goes."""

    ANSWERS = "thinks, then answers"
    TOOL = "calls a blocking tool in a thread"
    RANKS = "ranks passages, CPU work, in a process"
    KILLED = "ranks passages; the process of this job alone is killed once"
    BLOCKS = "blocks the event loop by mistake"
    STUMBLES = "fails once, then answers"
    LIMITED = "hits the rate limit once, then answers"
    DOUBLED = "is sent twice with one idempotency key"
    ABANDONED = "is cancelled by its user"
    DAWDLES = "runs past its soft timeout once, then answers"
    HURRIES = "gives a short answer when its soft timeout comes"
    BROKEN = "gives up at once, until somebody has mended the cause"
    HOPELESS = "fails as often as it is tried, until somebody has mended the cause"
    HANGS = "calls a tool once that outlives its hard timeout"


ONCE_A_ROUND = 0.0  # every habit occurs at least once
SHARES = {
    Habit.TOOL: 0.10,
    Habit.RANKS: 0.06,
    Habit.KILLED: ONCE_A_ROUND,
    Habit.BLOCKS: ONCE_A_ROUND,
    Habit.STUMBLES: 0.05,
    Habit.LIMITED: 0.04,
    Habit.DOUBLED: 0.03,
    Habit.ABANDONED: 0.015,
    Habit.DAWDLES: 0.008,
    Habit.HURRIES: 0.005,
    Habit.BROKEN: 0.006,
    Habit.HOPELESS: 0.004,
    Habit.HANGS: 0.003,
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One question to an agent, as it is stored: all that the agent has to know."""

    number: int
    habit: Habit
    steps: tuple[float, ...]
    pause: float


@dataclass(slots=True)
class Session:
    """A conversation of one user; in a burst, all its turns are submitted at once."""

    id: str
    tenant: str
    user: str
    title: str
    starts_at: float
    burst: bool
    turns: list[Turn] = field(default_factory=list)


def tenants(count: int) -> list[str]:
    """Return the names of so many tenants, the noisy one first."""
    return [NOISY, *QUIET[: count - 1]]


def make_round(flags: Flags, number: int) -> list[Session]:
    """Return the sessions of a round, in order of their arrival."""
    random = Random(f"{flags.seed}/{number}")
    names = tenants(flags.tenants)
    noisy = round(flags.sessions * NOISY_SHARE)
    sessions = []
    for index in range(flags.sessions):
        burst = index < noisy
        start = BURST_AT if burst else random.random() * LAST_ARRIVAL
        sessions.append(
            Session(
                id=f"s{number}-{index:03d}",
                tenant=names[0] if burst else names[1 + index % (len(names) - 1)],
                user=f"user-{index % 50:02d}",  # the store may know the session
                title=random.choice(TITLES),
                starts_at=start * flags.seconds,
                burst=burst,
            )
        )
    _deal_turns(sessions, random)
    return sorted(sessions, key=lambda session: session.starts_at)


def _deal_turns(sessions: list[Session], random: Random) -> None:
    lengths = [random.randint(2, 5) for _ in sessions]
    deck = _deck(sum(lengths), random)
    for session, length in zip(sessions, lengths, strict=True):
        for number in range(1, length + 1):
            steps = tuple(random.uniform(0.02, 0.08) for _ in range(random.randint(2, 4)))
            pause = random.uniform(0.4, 1.2)
            session.turns.append(Turn(number, deck.pop(), steps, pause))


def _deck(size: int, random: Random) -> list[Habit]:
    """Return so many habits, each at least once as long as there is room."""
    deck = [habit for habit, share in SHARES.items() for _ in range(max(1, round(share * size)))]
    deck = deck[:size]
    deck += [Habit.ANSWERS] * (size - len(deck))
    random.shuffle(deck)
    return deck
