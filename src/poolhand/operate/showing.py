"""Text that others wrote, as operators are shown it."""

from __future__ import annotations

from poolhand.rules.showing import safe as safe
