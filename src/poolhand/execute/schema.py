"""Schemas: what calls a task accepts, for other processes and other languages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from poolhand.execute.parcel import Parcels
from poolhand.execute.signature import Signature
from poolhand.wire.envelope import VERSION

VERSION_LENGTH = 8


def arguments_schema(signature: Signature) -> dict[str, Any]:
    """Return the JSON Schema of the arguments of a call; a type that has none allows anything."""
    fields = signature.fields()
    definitions: dict[str, Any] = {}
    properties = {name: _schema(kind, definitions) for name, (kind, _) in fields.items()}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [name for name, (_, required) in fields.items() if required],
        "additionalProperties": False,
    }
    return {**schema, "$defs": definitions} if definitions else schema


def version_of(signature: Signature, parcels: Parcels) -> str:
    """Return a short digest of what decides which kept calls can be read."""
    schema = msgspec.json.encode(arguments_schema(signature), order="deterministic")
    reader = repr((VERSION, parcels.limits, parcels.pickle is not None, signature.kinds))
    return sha256(reader.encode() + schema).hexdigest()[:VERSION_LENGTH]


def _schema(kind: Any, definitions: dict[str, Any]) -> Any:
    for attempt in (_by_msgspec, _by_pydantic):
        try:
            schema, found = attempt(kind)
        except Exception:  # noqa: S112 - types of users; the next one may know them
            continue
        definitions |= found
        return schema
    return {}


def _by_msgspec(kind: Any) -> tuple[Any, dict[str, Any]]:
    (schema,), found = msgspec.json.schema_components([kind], schema_hook=_model_schema)
    _lift({"schema": schema, "found": dict(found)}, found)
    return schema, found


def _lift(schema: Any, definitions: dict[str, Any]) -> None:
    """Move the definitions that models bring to the top, where their references look for them."""
    if isinstance(schema, dict):
        definitions.update(schema.pop("$defs", {}))
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            _lift(part, definitions)


def _model_schema(kind: Any) -> dict[str, Any]:
    make: Callable[[], dict[str, Any]] | None = getattr(kind, "model_json_schema", None)
    if make is None:
        raise NotImplementedError
    return make()


def _by_pydantic(kind: Any) -> tuple[Any, dict[str, Any]]:
    """Describe a type that holds pydantic models, which brought pydantic along."""
    schema = sys.modules["pydantic"].TypeAdapter(kind).json_schema(ref_template="#/$defs/{model}")
    return schema, schema.pop("$defs", {})
