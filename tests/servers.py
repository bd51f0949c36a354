"""Real servers for tests: one per process of the run, started when the first test asks.

Where a server is not installed, its tests fail under CI (the variable `CI` is set) and are skipped
at home, which the last lines of the run say. `POSTGRES_BIN` names the folder of another PostgreSQL.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.private_servers.postgres_server import PostgresServer, find_postgres
from tests.private_servers.programs import ServerMissing

# Called as `initdb -D FOLDER OPTION...`, with the same options each time.
INITDB = """\
#!/bin/sh
set -e
data=$2
shift 2
if [ ! -d {at}/made ]; then
    {real} -D {at}/making "$@" || {{ rm -rf {at}/making; exit 1; }}
    mv {at}/making {at}/made
fi
exec cp -Rp {at}/made "$data"
"""
_NEEDS = re.compile(r"needs (?P<what>.+); install it with: (?P<how>.+)")


@pytest.fixture(scope="session")
def postgres_binaries() -> Path:
    """Return the folder of PostgreSQL's programs; requesting it requires them."""
    named = os.environ.get("POSTGRES_BIN")
    try:
        return find_postgres(Path(named) if named else None)["postgres"].parent
    except ServerMissing as missing:
        do_without(missing)


@pytest.fixture(scope="session")
def postgres(postgres_binaries: Path) -> Iterator[PostgresServer]:
    """Return a running PostgreSQL; tests share it and must not stop it or count its actions."""
    with PostgresServer(durable=False, binaries=postgres_binaries) as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """Return the URL of a new and empty database."""
    url = postgres.database()
    yield url
    postgres.drop(url)


@pytest.fixture(scope="session")
def copying_binaries(postgres_binaries: Path) -> Iterator[Path]:
    """Return a folder of programs whose initdb copies its first result, which is faster."""
    with tempfile.TemporaryDirectory(prefix="poolhand-pg-made-") as name:
        folder = Path(name)
        # If this is root, servers run as another user, who owns the files.
        folder.chmod(0o777)
        for program in ("postgres", "psql"):
            (folder / program).symlink_to(postgres_binaries / program)
        (folder / "initdb").write_text(INITDB.format(real=postgres_binaries / "initdb", at=folder))
        (folder / "initdb").chmod(0o755)
        yield folder


@pytest.fixture
def own_postgres(copying_binaries: Path) -> Iterator[PostgresServer]:
    """Return a running PostgreSQL for one test alone, to be stopped, killed and paused."""
    with PostgresServer(binaries=copying_binaries) as server:
        yield server


def do_without(missing: ServerMissing) -> NoReturn:
    """Fail under CI, where no test may be left out silently; skip otherwise."""
    if os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        pytest.fail(str(missing), pytrace=False)
    pytest.skip(f"needs {missing.what}; install it with: {missing.how}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    # Last, so that it is printed below the other sections.
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    needs = Counter(found.groups() for report in skipped if (found := _NEEDS.search(_why(report))))
    for (what, how), tests in sorted(needs.items()):
        noun = "test needs" if tests == 1 else "tests need"
        line = f"SKIPPED: {tests} {noun} {what}; install it with: {how}"
        terminalreporter.write_line(line, red=True, bold=True)


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
