"""Test runs without an installed server, and how to install it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
PLANTED = """
def test_alpha(postgres): ...
def test_beta(database): ...
def test_gamma(own_postgres): ...
def test_delta(): ...
"""


def run_tests(folder: Path, *options: str, **environment: str) -> tuple[int, list[str]]:
    """Run planted tests with the project's fixtures, without PostgreSQL; return how that ended."""
    (folder / "bin").mkdir()
    (folder / "test_planted.py").write_text(PLANTED)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.servers", "-p", "no:asyncio"),
            *("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder), *options),
            "test_planted.py",
        ],
        cwd=folder,
        env={
            "PYTHONPATH": str(REPOSITORY),
            "PATH": str(folder / "bin"),
            "POSTGRES_BIN": str(folder / "bin"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("options", [("-n", "0"), ("-n", "2")], ids=["alone", "two processes"])
def test_outside_of_ci_tests_of_a_missing_server_are_skipped_with_a_summary(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    code, lines = run_tests(tmp_path, "-ra", *options)
    assert code == 0, lines
    assert lines[-2:-1] == [
        "SKIPPED: 3 tests need PostgreSQL; install it with: apt-get install postgresql"
    ]
    assert "1 passed, 3 skipped" in lines[-1]


def test_one_skipped_test_is_reported_in_the_singular(tmp_path: Path) -> None:
    _, lines = run_tests(tmp_path, "-k", "alpha")
    assert lines[-2].startswith("SKIPPED: 1 test needs PostgreSQL; install it with: ")


def test_a_run_without_skips_reports_nothing(tmp_path: Path) -> None:
    _, lines = run_tests(tmp_path, "-k", "delta", CI="true")
    assert not [line for line in lines if "SKIPPED" in line]


def test_under_ci_tests_of_a_missing_server_fail_and_name_what_is_missing(tmp_path: Path) -> None:
    code, lines = run_tests(tmp_path, "-rE", CI="true")
    assert code == 1
    assert "1 passed, 3 errors" in lines[-1]
    told = (
        f"Failed: PostgreSQL is not installed: no initdb, postgres, psql in {tmp_path / 'bin'}; "
        "install it with: apt-get install postgresql"
    )
    assert len([line for line in lines if line.startswith("ERROR") and line.endswith(told)]) == 3


# tools/servers

APT_GET = """\
#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >>"$FAKES/asked"
case " $* " in
*" update "*) exec mkdir -p "$SERVERS_ROOT/var/lib/apt/lists" ;;
*" install "*) [ -e "$FAKES/broken" ] && echo 'E: no way' && exit 100 ;;
esac
[ -e "$FAKES/stale" ] && rm "$FAKES/stale" && exit 100
mkdir -p "$SERVERS_ROOT/usr/lib/postgresql/15/bin"
for name in initdb postgres psql; do
    : >"$SERVERS_ROOT/usr/lib/postgresql/15/bin/$name"
    chmod +x "$SERVERS_ROOT/usr/lib/postgresql/15/bin/$name"
done
[ -x "$SERVERS_ROOT/usr/sbin/policy-rc.d" ] && : >"$FAKES/forbidden"
: >"$SERVERS_ROOT/usr/sbin/pgbouncer"
chmod +x "$SERVERS_ROOT/usr/sbin/pgbouncer"
mkdir -p "$SERVERS_ROOT/usr/bin" "$SERVERS_ROOT/usr/include"
: >"$SERVERS_ROOT/usr/bin/gcc"
chmod +x "$SERVERS_ROOT/usr/bin/gcc"
: >"$SERVERS_ROOT/usr/bin/tmux"
chmod +x "$SERVERS_ROOT/usr/bin/tmux"
: >"$SERVERS_ROOT/usr/include/stdio.h"
"""
INSTALL = (
    "noninteractive install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 postgresql"
    " pgbouncer gcc libc6-dev tmux"
)
NO_CLUSTER = "etc/postgresql-common/createcluster.d/none-at-install.conf"


class Machine:
    """A folder that stands for a machine: its programs, its files, a recording apt-get."""

    def __init__(self, folder: Path, user: int = 0, apt: bool = True) -> None:
        self.root, self.fakes = folder / "root", folder / "bin"
        self.root.mkdir()
        self.fakes.mkdir()
        self._plant("id", f"#!/bin/sh\necho {user}\n")
        if apt:
            self._plant("apt-get", APT_GET)
        for name in ("bash", "sh", "dirname", "readlink", "mkdir", "mktemp", "rm", "tail", "chmod"):
            (self.fakes / name).symlink_to(_real(name))

    def _plant(self, name: str, text: str) -> None:
        (self.fakes / name).write_text(text)
        (self.fakes / name).chmod(0o755)

    def run(self) -> str:
        """Run tools/servers; return its output."""
        done = subprocess.run(
            [REPOSITORY / "tools" / "servers"],
            env={
                "PATH": str(self.fakes),
                "SERVERS_ROOT": str(self.root),
                "FAKES": str(self.fakes),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def asked(self) -> list[str]:
        try:
            return (self.fakes / "asked").read_text().splitlines()
        except FileNotFoundError:
            return []


def _real(name: str) -> Path:
    return next(p for p in (Path("/bin") / name, Path("/usr/bin") / name) if p.exists())


def test_as_root_missing_packages_are_installed_once_and_nothing_is_started(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    said = machine.run()
    assert said.startswith("servers: installing postgresql pgbouncer")
    assert said.count("\n") == 1
    assert machine.asked() == [" update -qq", INSTALL]
    assert (machine.root / NO_CLUSTER).read_text() == "create_main_cluster = false\n"
    assert (machine.fakes / "forbidden").exists()
    assert not (machine.root / "usr/sbin/policy-rc.d").exists()
    assert machine.run() == ""
    assert len(machine.asked()) == 2


def test_package_lists_are_not_fetched_unless_they_are_old(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    lists = machine.root / "var/lib/apt/lists"
    lists.mkdir(parents=True)
    (lists / "mirror_dists_stable_Packages.lz4").touch()
    (machine.fakes / "stale").touch()
    machine.run()
    assert machine.asked() == [INSTALL, " update -qq", INSTALL]
    assert machine.run() == ""


@pytest.mark.parametrize(("user", "apt"), [(1000, True), (0, False)], ids=["user", "no apt-get"])
def test_without_root_the_install_command_is_shown_and_the_run_continues(
    tmp_path: Path, user: int, apt: bool
) -> None:
    machine = Machine(tmp_path, user, apt)
    said = machine.run()
    packages = "postgresql pgbouncer gcc libc6-dev tmux"
    assert said.startswith(f"servers: not installed: {packages}.")
    assert said.endswith(f"as root: apt-get install --no-install-recommends {packages}\n")
    assert not machine.asked()
    assert not list(machine.root.iterdir())


def test_a_failed_installation_is_reported_and_the_run_continues(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (machine.fakes / "broken").touch()
    assert "that failed; tests that need it are skipped" in machine.run()
