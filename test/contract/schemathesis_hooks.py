"""Keeps Schemathesis from sending unknown members that ask for nothing: the server accepts and ignores them (decision 3)."""

import json
from pathlib import Path

import schemathesis


def property_names(schema):
    """Yields the names of the properties of all objects in a document."""
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        yield from schema["properties"]
    for part in parts:
        yield from property_names(part)


KNOWN = set(property_names(json.loads(Path("without-waits.json").read_text())))


def asks_for_nothing(value):
    return value is None or value is False or value in ("", [], {})


def has_ignored_member(value):
    if isinstance(value, list):
        return any(map(has_ignored_member, value))
    if not isinstance(value, dict):
        return False
    return any(name not in KNOWN and asks_for_nothing(member) for name, member in value.items()) or any(
        map(has_ignored_member, value.values())
    )


@schemathesis.hook
def filter_body(_context, body):
    return not has_ignored_member(body)
