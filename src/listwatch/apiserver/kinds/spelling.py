"""Fields whose JSON text counts, beside what it means.

A real server keeps a field that holds foreign JSON as the bytes that came, and compares bytes. A
patch writes it anew, without spaces, so that it differs from what was sent with spaces. Here
objects are values, and the order of their keys tells how such a field was written: with spaces if
it is last.
"""

import msgspec

from listwatch.apiserver.kinds.kind import Object, View


def mark(obj: Object, field: str, body: bytes = b"") -> None:
    """Put a field where it tells how it was written in a JSON body; b"" for not in one."""
    if field not in obj:
        return
    value = obj.pop(field)
    others = dict(obj)
    obj.clear()
    obj |= {**others, field: value} if _has_spaces(body, field) else {field: value, **others}


def same_spelling(new: View, old: View, field: str) -> bool:
    """Return whether a field was written alike in two objects, with spaces or without."""
    return ([*new][-1:] == [field]) == ([*old][-1:] == [field])


def _has_spaces(body: bytes, field: str) -> bool:
    try:
        text = bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get(field, b""))
        return bool(text) and msgspec.json.encode(msgspec.json.decode(text)) != text
    except msgspec.DecodeError:
        return False
