"""A plan: one pool and its operations, all drawn from one seed before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

from poolhand import Retry, bounded, fail_fast, fair_round_robin, fifo, lifo, priority, ring_buffer

FEWEST_STEPS = 12
MOST_STEPS = 20
NESTING = 2

STRATEGIES = ("fifo", "lifo", "priority", "aging", "fair", "weighted", "fair by field")
POLICIES = (
    "unbounded",
    "block_submitter",
    "block_submitter for a while",
    "drop_oldest",
    "drop_newest",
    "fail_submitter",
    "fail_fast",
    "ring_buffer",
)
PAIRS = tuple(product(STRATEGIES, POLICIES))

# The end of an attempt. A plan never ends on a snooze: such a job would never end.
ORDINARY = ("return", "return", "return", "fail", "fail", "give_up", "timeout_error")
RUDE = ("exit", "interrupt", "cancelled", "stop", "stop_async", "generator_exit", "base")
AGAIN = ("snooze", "later", "fail")
PLACES = ("async", "async", "async", "async", "sync", "thread", "thread then async")
PAUSES = (0.0, 0.0, 0.0, 0.0, 0.01, 0.05, 0.2, 0.5)
WORK = (0.0, 0.0, 0.02, 0.1, 0.25, 0.6, 1.5)
KEYS = ("a", "b", "c")
SESSIONS = ("s", "t")

# Verbs that submit are the most frequent; the weights are counts.
SUBMITS = ("submit", "submit", "submit_nowait", "submit_nowait", "run", "impatient")
VERBS = (
    *SUBMITS * 4,
    *("cancel",) * 5,
    *("resize",) * 3,
    *("pause", "resume", "resume"),
    *("rerun",) * 2,
    *("wait", "explain"),
)


@dataclass(slots=True, eq=False)
class Call:
    """One call and how its body behaves: attempt n ends as `deeds[n]`, the last one repeats.

    `stubborn` is how long it ignores a cancellation, `inner` what it awaits of its own pool.
    """

    number: int
    place: str
    deeds: tuple[str, ...]
    seconds: float
    stubborn: float
    options: dict[str, Any]
    inner: tuple[Call, ...]
    attempts: int
    timeout: float | None
    asks: bool = False  # for a retry, by itself or by what it awaits

    @property
    def is_keyed(self) -> bool:
        """Return whether it may replace another call, or another may replace it."""
        return "idempotency_key" in self.options


@dataclass(slots=True)
class Step:
    """One operation, `pause` seconds after the one before; the verb says which fields count."""

    verb: str
    pause: float
    call: Call | None = None
    seconds: float = 0.0
    number: int = 0


@dataclass(slots=True)
class Plan:
    """A whole schedule. `bound` is the depth of the queue, None where it has none."""

    seed: int
    strategy: str
    policy: str
    bound: int | None
    options: dict[str, Any]
    on_dead: str
    steps: list[Step] = field(default_factory=list)
    drain_timeout: float = 0.0

    def __str__(self) -> str:
        lines = [f"seed={self.seed} {self.strategy} / {self.policy} {self.options}"]
        lines += [f"  +{step.pause:g} {_told(step)}" for step in self.steps]
        return "\n".join([*lines, f"  drain({self.drain_timeout:g})"])


def make_plan(seed: int) -> Plan:
    """Draw a plan; neighbouring seeds cover all pairs of strategy and policy in turn."""
    draw = Random(f"schedule {seed}")
    strategy, policy = PAIRS[seed % len(PAIRS)]
    bound = None if policy in ("unbounded", "fail_fast") else draw.randint(1, 4)
    options = _pool_options(draw, strategy, policy, bound)
    plan = Plan(seed, strategy, policy, bound, options, draw.choice(("", "", "plain", "async")))
    calls = _Calls(draw, options, strategy)
    plan.steps = [_step(draw, calls) for _ in range(draw.randint(FEWEST_STEPS, MOST_STEPS))]
    if draw.random() < 0.4:
        place = draw.randrange(len(plan.steps) // 3, len(plan.steps))
        plan.steps.insert(place, Step("drain", draw.choice(PAUSES), seconds=_patience(draw)))
        if draw.random() < 0.4:
            plan.steps.append(Step("drain", draw.choice(PAUSES), seconds=_patience(draw)))
    plan.drain_timeout = _patience(draw)
    return plan


def _patience(draw: Random) -> float:
    return draw.choice((0.0, 0.1, 0.5, 1.0, 3.0))


def _pool_options(draw: Random, strategy: str, policy: str, bound: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_concurrent": draw.choice((1, 1, 2, 2, 3, 4)),
        "queue": _queue(strategy),
        "cancel_grace": draw.choice((0.0, 0.05, 0.5)),
        "drain_timeout": 5.0,
    }
    if bound is not None or policy == "fail_fast":
        options["backpressure"] = _backpressure(draw, policy, bound or 0)
    if draw.random() < 0.4:
        options["max_per_key"] = draw.choice((1, 1, 2))
    if draw.random() < 0.3:
        options["timeout"] = draw.choice((0.05, 0.3, 1.0))
    if draw.random() < 0.2:
        options["soft_timeout"] = draw.choice((0.05, 0.2))
    if draw.random() < 0.4:
        options["retry"] = _retry(draw)
    if draw.random() < 0.1:
        options["history"] = draw.choice((0, 2))
    return options


def _queue(strategy: str) -> Any:
    match strategy:
        case "fifo":
            return fifo()
        case "lifo":
            return lifo()
        case "priority":
            return priority()
        case "aging":
            return priority(aging=0.5)
        case "fair":
            return fair_round_robin()
        case "weighted":
            return fair_round_robin(weights={"a": 3, "b": 0.5})
        case _:
            return fair_round_robin("tenant_id")


def _backpressure(draw: Random, policy: str, bound: int) -> Any:
    match policy:
        case "fail_fast":
            return fail_fast()
        case "ring_buffer":
            return ring_buffer(bound)
        case "block_submitter for a while":
            return bounded(bound, wait_timeout=draw.choice((0.0, 0.05, 0.3, 1.0)))
        case _:
            return bounded(bound, on_full=policy)


def _retry(draw: Random) -> Retry:
    first = draw.choice((0.0, 0.05, 0.3))
    return Retry(attempts=draw.randint(1, 3), first=first, jitter=draw.choice((0.0, 0.5)))


def _step(draw: Random, calls: _Calls) -> Step:
    verb = draw.choice(VERBS)
    step = Step(verb, draw.choice(PAUSES), number=draw.randrange(1000))
    if verb in SUBMITS:
        step.call = calls.make()
    if verb in ("run", "impatient"):
        step.seconds = draw.choice((0.0, 0.02, 0.1, 0.4))
    if verb == "resize":
        step.number = draw.randint(1, 5)
    if verb == "wait":
        step.seconds = draw.choice((0.0, 0.1, 1.0))
    return step


class _Calls:
    """Draws calls for one pool."""

    def __init__(self, draw: Random, pool: dict[str, Any], strategy: str) -> None:
        self._draw = draw
        self._retry: Retry | None = pool.get("retry")
        self._timeout: float | None = pool.get("timeout")
        self._key = "tenant_id" if strategy == "fair by field" else "key"
        # Half of the pools have keys, half have sessions: both need several jobs to matter.
        self._keyed = draw.random() < 0.5 or "max_per_key" in pool
        self._turns = draw.random() < 0.5
        self._count = 0

    def make(self, depth: int = 0) -> Call:
        draw = self._draw
        self._count += 1
        number = self._count
        place = draw.choice(PLACES)
        deeds = self._deeds()
        options = self._options(place)
        inner: tuple[Call, ...] = ()
        if place == "async" and depth < NESTING and draw.random() < 0.15:
            inner = tuple(self.make(depth + 1) for _ in range(draw.choice((1, 1, 2))))
        retry: Retry | None = options.get("retry", self._retry)
        # A job that raises RetryLater without a policy gets the default four attempts.
        asks = "later" in deeds or any(one.asks or one.is_keyed for one in inner)
        attempts = (4 if asks else 1) if retry is None else retry.attempts
        stubborn = draw.choice((0.02, 0.3, 2.0)) if draw.random() < 0.2 else 0.0
        timeout: float | None = options.get("timeout", self._timeout)
        seconds = draw.choice(WORK)
        return Call(
            number, place, deeds, seconds, stubborn, options, inner, attempts, timeout, asks
        )

    def _deeds(self) -> tuple[str, ...]:
        draw = self._draw
        roll = draw.random()
        if roll < 0.7:
            return (draw.choice(ORDINARY),)
        if roll < 0.8:
            return (draw.choice(RUDE),)
        if roll < 0.85:
            return ("later",)
        again = [draw.choice(AGAIN) for _ in range(draw.choice((1, 1, 2)))]
        return (*again, draw.choice(ORDINARY))

    def _options(self, place: str) -> dict[str, Any]:
        draw = self._draw
        options: dict[str, Any] = {}
        if place == "sync":
            options["run_in"] = "loop"
        if self._keyed and draw.random() < 0.8:
            options[self._key] = draw.choice(KEYS)
        if self._turns and draw.random() < 0.6:
            options["session"] = draw.choice(SESSIONS)
            if draw.random() < 0.1:
                options["tenant"] = "other"
        if draw.random() < 0.3:
            options["priority"] = draw.randint(-2, 2)
        roll = draw.random()
        if roll < 0.1:
            options["timeout"] = draw.choice((0.05, 0.5, None))
        elif roll < 0.2:
            options["retry"] = _retry(draw)
        elif roll < 0.3:
            options["delay"] = draw.choice((0.0, 0.1, 0.7))
        elif roll < 0.35:
            options["expires"] = draw.choice((0.05, 0.5))
        elif roll < 0.45:
            options["idempotency_key"] = draw.choice("xyz")
            options["rerun_failed"] = draw.random() < 0.5
        if draw.random() < 0.3:
            options["cancel_with_caller"] = True
        return options


def _told(step: Step) -> str:
    call = "" if step.call is None else _described(step.call)
    return f"{step.verb} seconds={step.seconds:g} number={step.number} {call}"


def _described(call: Call) -> str:
    inner = "".join(f" [{_described(one)}]" for one in call.inner)
    stubborn = f" stubborn={call.stubborn:g}" if call.stubborn else ""
    return (
        f"#{call.number} {call.place} {call.seconds:g}s {'>'.join(call.deeds)}{stubborn}"
        f" {call.options}{inner}"
    )
