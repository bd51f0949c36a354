"""Watch a pool at work: offline agents of several tenants share one fair pool.

`python examples/demo.py` goes on until Ctrl-C, then drains; with `--once` it ends by itself.
"""

from __future__ import annotations

import signal
import sys

NEEDS = {"poolhand", "msgspec", "rich"}


def main() -> int:
    try:
        from stage import flags, run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in NEEDS:
            raise
        print(
            f"The demo needs {missing.name}, which is not installed here: "
            "pip install 'poolhand[demo]'",
            file=sys.stderr,
        )
        return 1
    given = flags.parse(sys.argv[1:])
    if hasattr(signal, "SIGPIPE"):
        # `demo.py | head` ends quietly, as other commands do.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return run.run(given)


if __name__ == "__main__":
    sys.exit(main())
