"""Rows of the network: cut at the worst moment, silent, or closed to one process."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from tests.faults.aim import Progress
from tests.faults.checker import Verdict
from tests.faults.crew import Crew, Life, begin, until
from tests.faults.figures import rerun_seconds
from tests.faults.ground import Ground
from tests.faults.history import History
from tests.faults.load import LANES, Item, Plan, standard
from tests.faults.proxy import Proxy
from tests.faults.row_kills import SLOTS
from tests.faults.row_server import judged
from tests.faults.row_stop import LATER, MOVED_SECONDS
from tests.faults.rows import Settings

COMMIT = r"^\s*COMMIT"
SPRUNG_SECONDS = 3.0
NOTICED_SECONDS = 35.0
STOPPED_SECONDS = 21.0  # twenty are promised, and one more until the check
FEW = 5


def proxy_to(ground: Ground, seed: int) -> Proxy:
    return Proxy("127.0.0.1", ground.server.port, seed, watches=True)


def cut_commits(ground: Ground, settings: Settings) -> Verdict:
    """Cut connections around their COMMIT: made without an answer, or not made."""
    random = Random(f"commits {settings.seed}")
    count = max(6, settings.kills // 2)
    plan = standard(settings.seed, settings.jobs, settings.longest)
    hit: Counter[str] = Counter()
    with ExitStack() as stack, begin(ground, plan) as crew:
        proxies = [stack.enter_context(proxy_to(ground, settings.seed + one)) for one in range(3)]
        urls = [proxy.through(ground.url) for proxy in proxies]
        pause = settings.pace * 1.5 * count * LANES / settings.jobs
        lives = [
            crew.start("door", urls[0], lanes=list(range(LANES)), pause=pause, slots=0),
            *(crew.start(f"worker-{one}", urls[one], slots=SLOTS) for one in (1, 2)),
        ]
        progress = Progress(ground.folder, plan)
        for number in range(count):
            progress.until_at((number + random.random()) / (count + 1), lives[0])
            which = number % 3
            aim = Aim(lives[which], ("add", "claim", "settle")[which], after=bool(number % 2))
            hit += aim.cut(proxies[which], random.randrange(FEW))
            if number % 10 == 9:
                settings.say(f"cut {number + 1} of {count} at {progress.look():.0%}")
        settings.say(f"cut {hit['after']} after and {hit['before']} before their COMMIT")
        crew.finish()
    verdict = judged(ground, {f"cut_{what}": times for what, times in sorted(hit.items())})
    for what in ("after", "before", "add", "claim", "settle"):
        if not hit[what]:
            verdict.faults.append(f"missed: no cut hit {what}")
    return verdict


@dataclass(frozen=True)
class Aim:
    """A COMMIT to be cut: of a process in a phase, after it is made or before."""

    life: Life
    phase: str
    after: bool

    def cut(self, proxy: Proxy, skip: int) -> Counter[str]:
        """Let some pass, cut one, and return what was hit: nothing if none came in time."""
        cut = proxy.cut_after if self.after else proxy.cut_before
        trap = cut(COMMIT, skip, lambda: self.phase in self.life.marks.now())
        if not trap.sprung.wait(SPRUNG_SECONDS):
            proxy.mend()
            return Counter()
        if self.after and trap.tag != "COMMIT":
            return Counter(not_made=1)
        return Counter({self.phase: 1, "after" if self.after else "before": 1})


def half_open(ground: Ground, settings: Settings) -> Verdict:
    """Silence all connections of a worker and a submitter; new ones would work."""
    plan = Plan(
        tuple(Item(number, "brief", 0.1) for number in range(200))
        + tuple(Item(200 + number, "brief", 0.1, lane=LATER) for number in range(100))
    )
    with proxy_to(ground, settings.seed) as proxy, begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        url = proxy.through(ground.url)
        crew.start("other", slots=2)
        one = crew.start("one", url, slots=2)
        crew.start("door", url, lanes=[0], pause=0.1, slots=0)
        crew.start("direct", lanes=[LATER], pause=0.4, slots=0)
        progress.until_runs(1, one.name)
        fell = _cut_off(crew, one, proxy.half_open)
        settings.say("all connections through the proxy are silent")
        until("it works again", lambda: begun_since(progress, one, fell), NOTICED_SECONDS + 10)
        noticed = time.monotonic() - fell
        crew.blows.write("cont", life=one.name)
        settings.say(f"it works again after {noticed:.1f} s")
        crew.finish()
    verdict = judged(ground, {"noticed_s": noticed}, may_crash=True)
    if noticed > NOTICED_SECONDS:
        verdict.faults.append(f"late: a dead line was noticed after {noticed:.1f} s")
    return verdict


def begun_since(progress: Progress, life: Life, at: float) -> bool:
    """Return whether a process has begun a job since a moment."""
    progress.look()
    return progress.last_begun.get(life.name, 0.0) > at


def cut_worker(ground: Ground, settings: Settings) -> Verdict:
    """Cut off one worker from its store: it stops its jobs, and another one runs them."""
    plan = Plan(
        tuple(Item(number, "gated") for number in range(FEW))
        + tuple(Item(FEW + number, "brief", 0.1, lane=LATER) for number in range(100))
    )
    with proxy_to(ground, settings.seed) as proxy, begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        one = crew.start("one", proxy.through(ground.url), slots=FEW)
        crew.start("door", lanes=[0], slots=0)
        progress.until_runs(FEW, one.name)
        proxy.refuse()
        fell = _cut_off(crew, one, proxy.cut)
        settings.say("a worker cannot reach its store any more")
        other = crew.start("other", slots=FEW)
        progress.until_runs(FEW, other.name)
        settings.say(f"its jobs run elsewhere after {time.monotonic() - fell:.1f} s")
        crew.open_gate(other.name)
        proxy.mend()
        mended = time.monotonic()
        crew.blows.write("cont", life=one.name)
        crew.start("door", lanes=[LATER], pause=0.1, slots=0)
        until("it works again", lambda: begun_since(progress, one, mended))
        crew.finish()
    verdict = judged(ground, {}, may_crash=True)
    history = History(ground.folder)
    runs = [run for run in history.attempts if run.life == one.name and run.began < fell]
    stopped = max((run.ended or math.inf) - fell for run in runs)
    moved = max(rerun_seconds(history), default=math.inf)
    if stopped > STOPPED_SECONDS or {run.how for run in runs} != {"CancelledError"}:
        verdict.faults.append(f"late: it stopped its jobs after {stopped:.1f} s, as {runs}")
    if moved > MOVED_SECONDS:
        verdict.faults.append(f"late: its jobs ran elsewhere after {moved:.1f} s")
    verdict.faults += still_running(history)
    verdict.figures |= {"stopped_s": stopped, "moved_s": moved}
    return verdict


def still_running(history: History) -> list[str]:
    """Code that can be stopped never runs in two places at a time."""
    return [
        f"overlap: job {id} began in {after.life} before it had ended in {before.life}"
        for id, runs in history.attempts_of.items()
        for before, after in pairwise(runs)
        if before.ended is None or before.ended > after.began
    ]


def _cut_off(crew: Crew, life: Life, how: Callable[[], object]) -> float:
    """Disturb the connections of a process; to the checker it is a fault, as leases may end."""
    at = time.monotonic()
    crew.blows.write("stop", life=life.name, phases=[], at=at)
    how()
    return at
