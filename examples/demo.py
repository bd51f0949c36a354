"""Watch durable agents at work: many sessions, one SQLite file, two processes, one of them killed.

`python examples/demo.py` runs until Ctrl-C, then drains; with `--once` it ends by itself.
"""

from __future__ import annotations

import sys

NEEDS = {"poolhand", "msgspec", "rich"}


def main() -> int:
    try:
        from stage import flags, run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in NEEDS:
            raise
        print(
            f"The demo needs {missing.name}, which is not installed here: pip install poolhand",
            file=sys.stderr,
        )
        return 1
    return run.run(flags.parse(sys.argv[1:]))


# Child processes of jobs import this file as well.
if __name__ == "__main__":
    sys.exit(main())
