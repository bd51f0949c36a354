"""What `import poolhand` loads and needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import poolhand

# asyncio itself loads socket, ssl and subprocess; everything else would come from poolhand.
FOREIGN = {
    "aio_pika", "aiohttp", "anthropic", "anyio", "argparse", "asyncpg", "click", "fastapi",
    "greenlet", "http.client", "http.server", "httpx", "multiprocessing", "openai", "psycopg",
    "redis", "requests", "rich", "sqlite3", "starlette", "textual", "typer", "urllib.request",
    "uvicorn", "uvloop", "xml", "yaml",
}  # fmt: skip

WORK = """
import asyncio, poolhand

async def double(number):
    return number * 2

async def main():
    async with poolhand.Pool("bare", max_concurrent=2, timeout=30) as pool:
        assert await pool.run(double, 21) == 42
        assert await pool.run(max, 3, 5) == 5
        assert pool.stats().completed == 2

asyncio.run(main())
print("worked")
"""


def python(code: str, *flags: str) -> str:
    ran = subprocess.run(
        [sys.executable, *flags, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """Return a line of code that makes only poolhand and msgspec importable."""
    for package in (poolhand, msgspec):
        assert package.__file__ is not None
        folder = Path(package.__file__).parent
        (tmp_path / package.__name__).symlink_to(folder, target_is_directory=True)
    return f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"


@pytest.mark.slow
def test_a_bare_environment_is_enough_to_work(bare: str) -> None:
    assert python(bare + WORK, "-I", "-S", "-W", "error") == "worked\n"


@pytest.mark.slow
def test_the_import_brings_no_network_and_no_command_line(bare: str) -> None:
    code = "before = set(sys.modules); import poolhand; print(*sys.modules)"
    loaded = set(python(bare + code, "-I", "-S").split())
    assert "poolhand.pool.pool" in loaded
    assert loaded & FOREIGN == set()
    assert not any(name.startswith("poolhand.testing") for name in loaded)


@pytest.mark.slow
def test_the_import_loads_only_msgspec_beside_the_standard_library(bare: str) -> None:
    code = "import poolhand; print(*sys.modules)"
    packages = {name.partition(".")[0] for name in python(bare + code, "-I", "-S").split()}
    assert packages - sys.stdlib_module_names - {"__main__", "_distutils_hack"} <= {
        "msgspec",
        "poolhand",
    }


@pytest.mark.slow
def test_importing_has_no_side_effects(bare: str) -> None:
    code = """
import asyncio, os, threading
os.chdir(sys.path[0])
files = set(os.listdir())
import poolhand
assert threading.active_count() == 1
assert set(os.listdir()) == files
assert poolhand.list_pools() == []
import logging
assert not logging.getLogger("poolhand").handlers
assert not logging.getLogger().handlers
print("quiet")
"""
    assert python(bare + code, "-I", "-S", "-B") == "quiet\n"


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("Keep", "poolhand.settings"),
        ("QueueStrategy", "poolhand.settings"),
        ("PoolFull", "poolhand.errors"),
        ("IdempotencyConflict", "poolhand.errors"),
        ("Job", "poolhand.views"),
        ("NamedTask", "poolhand.views"),
    ],
)
def test_a_name_of_another_module_is_named_with_that_module(name: str, module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"from poolhand import {name}"], capture_output=True, text=True
    )
    assert ran.stderr.endswith(
        f"ImportError: {name} is in {module}: write `from {module} import {name}`\n"
    )


@pytest.mark.parametrize("name", ["Keeep", "asyncio", "datetime", "__path2__"])
def test_a_name_that_is_nowhere_is_given_no_module(name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'$"):
        getattr(poolhand, name)
