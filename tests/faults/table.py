"""All rows by their names, in the order they are played."""

from __future__ import annotations

from tests.faults.ground import NO_STORE, POSTGRES, SQLITE
from tests.faults.row_clock import timed_clock
from tests.faults.row_crowd import crowd
from tests.faults.row_drain import timed_drain
from tests.faults.row_farm import farm_supervisor, farm_workers, timed_crash
from tests.faults.row_farm_jobs import farm_poison, timed_farm_blocked
from tests.faults.row_farm_stop import farm_rolling, farm_two, timed_term
from tests.faults.row_fence import fence
from tests.faults.row_garbled import garbled
from tests.faults.row_inside import descriptors, payload, timed_blocked
from tests.faults.row_kills import kills, restart, workers
from tests.faults.row_network import cut_commits, cut_worker, half_open
from tests.faults.row_planted import planted_bugs
from tests.faults.row_poison import poison
from tests.faults.row_pytest import checkpoint, disk, flush, one_file
from tests.faults.row_schedules import schedules
from tests.faults.row_server import connections, outages, paused, timed_absent
from tests.faults.row_services import services
from tests.faults.row_stop import stop, stop_locked, stop_writing
from tests.faults.row_tools import tools
from tests.faults.rows import Row

ROWS: dict[str, Row] = {
    # Processes
    "kills": Row(kills),
    "workers": Row(workers),
    "restart": Row(restart),
    "crowd": Row(crowd),
    "poison": Row(poison),
    "drain": Row(timed_drain),
    "fence": Row(fence),
    "tools": Row(tools),
    "services": Row(services),
    "stop": Row(stop),
    "stop-locked": Row(stop_locked, (SQLITE,)),
    "stop-writing": Row(stop_writing, (POSTGRES,)),
    # Processes of a farm
    "farm-workers": Row(farm_workers),
    "farm-supervisor": Row(farm_supervisor),
    "farm-term": Row(timed_term),
    "farm-rolling": Row(farm_rolling),
    "farm-two": Row(farm_two),
    "farm-poison": Row(farm_poison),
    "farm-blocked": Row(timed_farm_blocked),
    "farm-crash-200": Row(timed_crash),
    # PostgreSQL
    "server-fast": Row(outages("fast"), (POSTGRES,)),
    "server-immediate": Row(outages("immediate"), (POSTGRES,)),
    "server-killed": Row(outages("kill"), (POSTGRES,)),
    "server-paused": Row(paused, (POSTGRES,)),
    "server-full": Row(connections, (POSTGRES,)),
    "server-absent": Row(timed_absent, (POSTGRES,)),
    # Network
    "cut-commit": Row(cut_commits, (POSTGRES,)),
    "half-open": Row(half_open, (POSTGRES,)),
    "cut-off": Row(cut_worker, (POSTGRES,)),
    # SQLite, disk
    "flush": Row(flush, (SQLITE,)),
    "checkpoint": Row(checkpoint, (SQLITE,)),
    "disk": Row(disk, (SQLITE,)),
    "one-file": Row(one_file, (SQLITE,)),
    # Clock
    "clock": Row(timed_clock, moves_clock=True),
    # Inside
    "schedules": Row(schedules, (NO_STORE,)),
    "blocked": Row(timed_blocked),
    "descriptors": Row(descriptors),
    "payload": Row(payload),
    "garbled": Row(garbled),
    # The rows themselves
    "planted": Row(planted_bugs, moves_clock=True),
}
