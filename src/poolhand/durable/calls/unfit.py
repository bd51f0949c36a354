"""Error texts for arguments and results that would not be read back unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Any, get_args, is_typeddict

from poolhand.errors import PoolhandError
from poolhand.rules.json_values import (
    Changed,
    annotation_for,
    article,
    as_json,
    describe_change,
    returned_as,
)
from poolhand.rules.validation import did_you_mean, shown
from poolhand.wire.annotation import ENUMS, STORABLE
from poolhand.wire.round_trip import LostPart

_AT = re.compile(r"`\$\[2\]\.(\w+)(.*?)`")
_AT_END = re.compile(r"^(.*) - at `\$\[2\]\.(\w+)(.*?)`$", re.DOTALL)
_NO_MOMENT = re.compile(r"Invalid RFC3339 encoded (\w+)")
_IN_FIELD = re.compile(r"(.*)\.(\w+)(?:\[[^\[\]]*\])*", re.DOTALL)
OWN_CLASS = "a dataclass, TypedDict, msgspec Struct or pydantic model with a field for it"


def changed_argument(
    task: str, name: str, value: Any, changed: Changed, hint: str | None, unknown: str | None
) -> str:
    """Return the text for an argument that would change, as its type is partly open.

    `hint` is its annotation, `unknown` an annotation that cannot be resolved at run time.
    """
    what = describe_change(changed, name)
    text = f"task {task!r}: argument {name!r} {what}"
    if unknown is not None:
        return f"{text}; {_not_found(name, unknown)}"
    if _cannot_be_stored(changed):
        return f"{text}: {STORABLE}, and annotate it"
    if _is_mixed_enum(changed.value):
        return f"{text}; {ENUMS}: change its values, or pass {_instead(changed, name)}"
    if (field := _field(value, changed.place, name)) is not None:
        return f"{text}; {field}, or pass {_instead(changed, name)}"
    suited = annotation_for(value)
    if suited is not None:
        # Of a subclass of dict or list only the items are kept, however it is annotated.
        plain = isinstance(changed.value, dict | list) and not changed.is_key
        instead = f", or pass {_instead(changed, name)}" if plain else ""
        return f"{text}; {_annotate(hint)}: `{name}: {suited}`{instead}"
    return f"{text}; {_annotate(hint)} as {OWN_CLASS}, or pass {_instead(changed, name)}"


def changed_result(
    task: str, value: Any, changed: Changed, hint: str | None, unknown: str | None
) -> str:
    """Return the text for a result that would change."""
    what = describe_change(changed, "result")
    text = f"task {task!r}: its work is done, but its result {what}, and so it was not stored"
    if unknown is not None:
        return f"{text}; {_not_found('its return type', unknown)}"
    if _cannot_be_stored(changed):
        return f"{text}: return data; {STORABLE}, and annotate it"
    if _is_mixed_enum(changed.value):
        return f"{text}; {ENUMS}: change its values, or return {_instead(changed, 'result')}"
    if (field := _field(value, changed.place, "result")) is not None:
        return f"{text}; {field}, or return {_instead(changed, 'result')}"
    suited = annotation_for(value)
    if suited is not None:
        how = "annotate it" if hint is None else f"it is annotated {hint}: annotate it exactly"
        return f"{text}; {how}: `-> {suited}`, or return {_instead(changed, 'result')}"
    how = "annotate it" if hint is None else f"it is annotated {hint}: annotate it"
    return f"{text}; {how} as {OWN_CLASS}, or return {_instead(changed, 'result')}"


def _is_mixed_enum(value: Any) -> bool:
    """Return whether this is a member of an Enum that cannot be stored, however annotated."""
    if not isinstance(value, Enum):
        return False
    kinds = {type(one.value) for one in type(value)}
    return kinds not in ({str}, {int})


def lost_part(what: str, lost: LostPart, hint: Any) -> str:
    """Return the text for a part that was read back changed; `what` names the whole.

    `hint` is the annotation of the whole.
    """
    if lost.how == "dropped":
        return _dropped_key(what, _with_known_keys(lost, hint))
    given, back = type(lost.given).__name__, type(lost.back).__name__
    part = f"is {article(given)}"
    if lost.place:
        part = f"holds {article(given)} at {lost.place.strip('. ')}"
    if hasattr(lost.back, "get_secret_value"):
        return (
            f"{what} {part}, which is masked when it is stored; pass a reference to the secret, "
            "such as the name of a variable of the environment"
        )
    if lost.how != "type":
        return f"{what} {part}, {_LOST[lost.how].format(owner=lost.owner, kind=given)}"
    text = f"{what} {part}, which would come back as {article(back)}"
    if back in ("str", "bytes", "list", "dict"):
        return f"{text}; annotate it {given}, or pass {article(back)}"
    return (
        f"{text}; annotate it {given}, or, if it is one of a union, give that a discriminator: "
        "Annotated[A | B, Field(discriminator=…)]"
    )


_LOST = {
    "excluded": "which {owner} leaves out when it is stored (exclude=True); give it beside it",
    "private": "a private attribute of {owner}, which is not stored; make it a field",
    "value": (
        "which would come back as another {kind}: a serializer, a validator or __post_init__ of "
        "{owner} changes it; make it give back what it gets, or pass the data that {owner} is made "
        "from"
    ),
}


def _dropped_key(what: str, lost: LostPart) -> str:
    where = f" at {lost.place.strip('. ')}" if lost.place else ""
    owner = lost.owner or "its annotation"
    hint = did_you_mean(lost.given, lost.known) if lost.known else "remove it, or annotate it"
    text = f"{what} has the key {shown(lost.given)}{where}, which {owner} would drop; {hint}"
    if not hasattr(type(lost.back), "model_config"):
        return text
    joint = "" if text.endswith("?") else ";"
    return (
        f"{text}{joint} to drop such keys, give {owner} model_config = ConfigDict(extra='ignore')"
    )


def _with_known_keys(lost: LostPart, hint: Any) -> LostPart:
    """Return a dropped key, with the keys of the annotated TypedDict."""
    found = set(_typed_dicts(hint))
    if lost.known or len(found) != 1:
        return lost
    kind = found.pop()
    known = sorted(kind.__required_keys__ | kind.__optional_keys__)
    return lost._replace(owner=kind.__name__, known=tuple(known))


def _typed_dicts(hint: Any) -> Iterator[Any]:
    if is_typeddict(hint):
        yield hint
    for one in get_args(hint):
        yield from _typed_dicts(one)


def plain_reason(why: object) -> str:
    """Return why data cannot be read, with the caller's names of the arguments."""
    reason = why.message if isinstance(why, PoolhandError) else str(why)
    return _AT.sub(
        r"argument '\1'\2", _NO_MOMENT.sub(r"Expected `\1` or its ISO 8601 text", reason)
    )


def outdated(what: str, called: str, reason: str) -> str:
    """Return the text for a stored call that a function does not accept any more."""
    reason = _AT_END.sub(r"argument '\2'\3: \1", _NO_MOMENT.sub(r"Expected `\1`", reason))
    return (
        f"{what} does not fit {called} any more: {reason}; annotate the parameter so that it takes "
        "both, until no such job is left, or submit the job again"
    )


def other_moment(values: Mapping[str, Any], hints: Mapping[str, Any]) -> str | None:
    """Return the text for a datetime where a date or a time is annotated, or the reverse."""
    for name, value in values.items():
        hint = hints[name]
        kinds, given = {hint, *get_args(hint)}, type(value)
        what = "the result" if name == "return" else f"argument {name!r}"
        text = f"{what} is {article(given.__name__)}, and annotated"
        root = "result" if name == "return" else name
        if given in kinds:
            continue
        if given is datetime and kinds & {date, time}:
            wanted = "date" if date in kinds else "time"
            return f"{text} {wanted}: give {root}.{wanted}(), or annotate it datetime"
        if given is date and datetime in kinds:
            return f"{text} datetime: give datetime.combine({root}, time()), or annotate it date"
    return None


def _field(value: Any, place: str, name: str) -> str | None:
    """Return how to annotate the field of an object that a part is in; None if it is in none."""
    found = _IN_FIELD.fullmatch(place)
    if found is None:
        return None
    above, field = found.groups()
    if above or not hasattr(value, field):
        return f"annotate the field {field!r} of {name}{above}"
    suited = annotation_for(getattr(value, field))
    if suited is None:
        return f"annotate the field {field!r} of {type(value).__name__}"
    return f"annotate the field of {type(value).__name__}: `{field}: {suited}`"


def _cannot_be_stored(changed: Changed) -> bool:
    return not changed.is_key and returned_as(changed.value) is None


def _annotate(hint: str | None) -> str:
    return "annotate it" if hint is None else f"{hint} does not say so, annotate it"


def _instead(changed: Changed, name: str) -> str:
    if changed.is_key:
        return "text as keys"
    return as_json(changed.value, f"{name}{changed.place}")


def _not_found(name: str, unknown: str) -> str:
    return (
        f"{name} is annotated {unknown}, which is not found at run time: annotate it with a type "
        "that is imported at the top level of its module, not only for TYPE_CHECKING"
    )
