"""`python -m poolhand`: the command line."""

from __future__ import annotations

from poolhand.cli.main import run

if __name__ == "__main__":
    run()
