"""The app of a farm under test, as `poolhand work tests.faults.farm_app:app` loads it.

Its supervisor has the life that the harness gave it; each worker has one of its own, named after
the farm and its process.
"""

from __future__ import annotations

import os
from threading import Event, Thread

from poolhand import App

LOOK = 0.5


def made() -> App:
    """Return the app of the plan, with the life of this process marked."""
    harness = int(os.environ["FAULTS_HARNESS"])
    if os.getppid() == harness:
        os.environ["FAULTS_FARM"] = os.environ["FAULTS_LIFE"]
        Thread(target=end_without, args=(harness,), daemon=True).start()
    else:
        os.environ["FAULTS_LIFE"] = f"{os.environ['FAULTS_FARM']}.{os.getpid()}"
    # Imported late: they read the name of their life at import.
    from tests.faults import bodies, outside
    from tests.faults.load import read_plan
    from tests.faults.runner import make_app, mark_life

    mark_life()
    return make_app(read_plan(bodies.FOLDER / outside.PLAN), payload=0)[0]


def end_without(harness: int) -> None:
    """End this process, a supervisor, as soon as the harness is gone."""
    rest = Event()
    while os.getppid() == harness:
        rest.wait(LOOK)
    os._exit(1)


app = made()
