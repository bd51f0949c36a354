"""Text that others wrote, as it may be shown: every face stands on this one function."""

from __future__ import annotations


def safe(text: str) -> str:
    """Return a text in which every character can be seen and none does anything."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
