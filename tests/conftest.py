"""Settings for every test; fixtures are beside the tests that use them, except for servers."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from poolhand.observe.events import EVENTS
from tests.extent import FIRST_SEED, FULL, SCHEDULES, examples

pytest_plugins = ["tests.servers", "tests.schemas", "tests.pooler"]

# No deadline and no complaint about slow data: a busy machine is not a failure of the code.
settings.register_profile(
    "fresh", print_blob=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# Reproducible: the same examples in every run. `make soak` draws others.
settings.register_profile(
    "same", settings.get_profile("fresh"), derandomize=True, max_examples=examples(100)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A test's own timeout raises inside it, which an event loop can swallow. This much later the
# process prints what each thread does and ends; the run continues and names the test.
LAST_RESORT = 30
_screen = pytest.StashKey[int]()

# Files of tests lie in memory where there is room for them: on a disk, thousands of stores and the
# servers cost a third more of the processor. TMPDIR names another place, whose files are kept.
MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a folder of its own
ROOM = 4 << 30
_made = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_screen] = os.dup(2)
    if "TMPDIR" not in os.environ and _has_room(MEMORY):
        # Every process of the run looks here: workers, servers, what the tests start.
        os.environ["TMPDIR"] = config.stash[_made] = tempfile.mkdtemp(prefix="test-", dir=MEMORY)
        Path(os.environ["TMPDIR"]).chmod(0o711)  # servers may run as another user
        tempfile.tempdir = None
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a shell, processes of the tests would ignore Ctrl-C as well.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _has_room(folder: Path) -> bool:
    """Return whether a folder in memory can take the files of a run, and programs in it can run."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return False
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize > ROOM and not about.f_flag & os.ST_NOEXEC


def pytest_unconfigure(config: pytest.Config) -> None:
    if _made in config.stash:
        shutil.rmtree(config.stash[_made], ignore_errors=True)


def pytest_report_header() -> str:
    return f"schedules: {SCHEDULES:,} from seed {FIRST_SEED} (SCHEDULE_SEED=n starts elsewhere)"


# A case on a server or on a used store repeats one on a new file, which `make check` runs.
CONDITION = re.compile(r"\[.*(postgres|server|used|old)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [] if FULL else [item for item in items if item.get_closest_marker("full")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        if CONDITION.search(item.name):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    # Thousands of test objects stay until the end: no collection needs to scan them again.
    gc.collect()
    gc.freeze()
    # A tenth of the collections: a test that needs one asks for it.
    gc.set_threshold(7_000)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    screen = item.config.stash[_screen]
    faulthandler.dump_traceback_later(_limit(item) + LAST_RESORT, file=screen, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _limit(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout"))


@pytest.fixture(autouse=True)
def _nothing_of_others(request: pytest.FixtureRequest) -> None:
    """Collect the garbage of earlier tests before a test reads the log, or collects itself.

    Failures that were never asked for are logged now. The objects that remain belong to no test:
    they are frozen, so that later collections do not scan them.
    """
    if "caplog" in request.fixturenames or hasattr(request.module, "gc"):
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _no_subscribers_left() -> Iterator[None]:
    """Check that a test ends its subscriptions to the events of all pools of this process."""
    before = EVENTS._subscribers, EVENTS.reported
    yield
    after = EVENTS._subscribers, EVENTS.reported
    EVENTS._subscribers, EVENTS.reported = before
    EVENTS._look()
    assert after == before, "end what listens to EVENTS: later tests would hear it"


@pytest.fixture(autouse=True)
def _no_store_threads_left() -> Iterator[None]:
    """Check that a test closes its stores: an open one may write into the store of a later test."""
    before = _store_threads()
    yield
    left = _store_threads() - before
    for thread in left:
        thread.join(5)
    assert not {thread for thread in left if thread.is_alive()}, "a store was not closed"


def _store_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "poolhand-store"}
