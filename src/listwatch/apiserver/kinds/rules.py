"""Rules that kinds share: labels, names, numbers, lists of values."""

import ipaddress
import re
from collections.abc import Container, Mapping
from typing import Any

from listwatch.apiserver.kinds.kind import View
from listwatch.schema.causes import Cause, invalid_value, not_supported
from listwatch.schema.facts import facts
from listwatch.selector import label_value_problems, qualified_name_problems


def validate_labels(labels: Mapping[str, str] | None, path: str) -> list[Cause]:
    """Return the rules that labels break."""
    causes = []
    for key, value in (labels or {}).items():
        causes += [invalid_value(path, key, why) for why in qualified_name_problems(key)]
        causes += [invalid_value(path, value, why) for why in label_value_problems(value)]
    return causes


_NOT_NEGATIVE = "must be greater than or equal to 0"


#: An RFC 1123 label, and what the server says of what is none.
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


LABEL_WORDS = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def label(path: str, name: str) -> list[Cause]:
    """Return why a name is not an RFC 1123 label."""
    causes = []
    if len(name) > 63:
        causes.append(invalid_value(path, name, "must be no more than 63 characters"))
    if not LABEL.fullmatch(name):
        causes.append(invalid_value(path, name, LABEL_WORDS))
    return causes


def _under(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def not_negative(obj: View, path: str, *keys: str) -> list[Cause]:
    """Return the numbers under these keys that are negative."""
    return [
        invalid_value(_under(path, key), obj[key], _NOT_NEGATIVE)
        for key in keys
        if isinstance(obj.get(key), int) and obj[key] < 0
    ]


def known_values(of: str, key: str) -> tuple[str, ...]:
    """Return the values that the facts know for a field of a type, or for the items of a list.

    Args:
        of: the type, such as `core.v1.Container`.
        key: the field.
    """
    field = facts().definition(f"io.k8s.api.{of}").fields[key]
    return field.enum or (field.item.enum if field.item is not None else ())


def enumeration(
    obj: View, path: str, key: str, of: str, *, but: Container[str] = ()
) -> list[Cause]:
    """Return the value under a key if it is none of those that its type has.

    Args:
        obj: has the value.
        path: where the object stands.
        key: the field.
        of: the type, as for `known_values`.
        but: values of the type that are not supported here.
    """
    value = obj.get(key)
    if value is None:
        return []
    known = [each for each in known_values(of, key) if each not in but]
    return [] if value in known else [not_supported(_under(path, key), value, known)]


def port_number(path: str, value: Any) -> list[Cause]:
    """Return the number if it is not that of a port."""
    if isinstance(value, int) and not 0 < value < 65_536:
        return [invalid_value(path, value, "must be between 1 and 65535, inclusive")]
    return []


_SUFFIXES = {
    **{
        suffix: 1024**power for power, suffix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
    },
    **{suffix: 10.0**power for suffix, power in zip("numkMGTPE", range(-9, 19, 3), strict=False)},
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
}


def quantity(text: str) -> float:
    """Return a canonical quantity as a number, for comparisons."""
    found = re.fullmatch(r"([-+\d.]+)([a-zA-Z]*)(.*)", str(text))
    if found is None:
        return 0.0
    if found[3] or (found[2] in {"e", "E"} and found[3]):
        return float(text)
    return float(found[1]) * _SUFFIXES.get(found[2], 1)


IP_WORDS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def is_address(text: str) -> bool:
    """Tell whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
