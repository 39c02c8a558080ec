"""Fields whose exact JSON text matters.

A real server keeps a field of arbitrary JSON as the received bytes, and compares bytes. A patch
rewrites it without spaces, so it differs from a body with spaces. Here objects are decoded, and the
field's position records its form: last means with spaces.
"""

import msgspec

from listwatch.apiserver.kinds.kind import Object, View


def mark(obj: Object, field: str, body: bytes = b"") -> None:
    """Move a field to the position that records its form in a JSON body; b"" for no body."""
    if field not in obj:
        return
    value = obj.pop(field)
    others = dict(obj)
    obj.clear()
    obj |= {**others, field: value} if _has_spaces(body, field) else {field: value, **others}


def same_spelling(new: View, old: View, field: str) -> bool:
    """Return whether a field has the same form in two objects, with spaces or without."""
    return ([*new][-1:] == [field]) == ([*old][-1:] == [field])


def _has_spaces(body: bytes, field: str) -> bool:
    try:
        text = bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get(field, b""))
        return bool(text) and msgspec.json.encode(msgspec.json.decode(text)) != text
    except (msgspec.DecodeError, RecursionError):
        return False
