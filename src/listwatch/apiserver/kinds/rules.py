"""Rules that kinds share: labels, names, numbers, lists of values."""

import ipaddress
import re
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import Any

from listwatch.apiserver.kinds.kind import View
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, not_supported, required
from listwatch.schema.facts import facts
from listwatch.selector import (
    label_value_problems,
    qualified_name_problems,
    subdomain_problems,
)


def validate_labels(labels: Mapping[str, str] | None, path: str) -> list[Cause]:
    """Return the rules that labels violate."""
    causes = []
    for key, value in (labels or {}).items():
        causes += [invalid_value(path, key, why) for why in qualified_name_problems(key)]
        causes += [invalid_value(path, value, why) for why in label_value_problems(value)]
    return causes


_ANNOTATIONS_LIMIT = 262_144


def validate_annotations(annotations: Mapping[str, str] | None, path: str) -> list[Cause]:
    """Return the rules that annotations violate."""
    causes = []
    size = 0
    for key, value in (annotations or {}).items():
        size += len(key.encode()) + len(value.encode())
        causes += [invalid_value(path, key, why) for why in qualified_name_problems(key.lower())]
    if size > _ANNOTATIONS_LIMIT:
        causes.append(
            Cause(
                path,
                "FieldValueTooLong",
                f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes",
            )
        )
    return causes


NOT_NEGATIVE = "must be greater than or equal to 0"


#: An RFC 1123 label, and the server's message about an invalid one.
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


def subdomain(path: str, name: str) -> list[Cause]:
    """Return why a name is not an RFC 1123 subdomain."""
    return [invalid_value(path, name, why) for why in subdomain_problems(name)]


def qualified_name(path: str, name: str) -> list[Cause]:
    """Return why a name is not a qualified name: one with an optional domain prefix."""
    return [invalid_value(path, name, why) for why in qualified_name_problems(name)]


def path_name(path: str, name: str) -> list[Cause]:
    """Return why a name can't be part of a path."""
    if name in {".", ".."}:
        return [invalid_value(path, name, f"may not be '{name}'")]
    return [invalid_value(path, name, f"may not contain '{char}'") for char in "/%" if char in name]


_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")


_CONFIG_KEY_WORDS = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
    "'[-._a-zA-Z0-9]+')"
)


def config_key(path: str, key: str) -> list[Cause]:
    """Return why a key is invalid in a ConfigMap or Secret."""
    if len(key) > 253:
        return [invalid_value(path, key, "must be no more than 253 characters")]
    if not _CONFIG_KEY.fullmatch(key):
        return [invalid_value(path, key, _CONFIG_KEY_WORDS)]
    if key in {".", ".."}:
        return [invalid_value(path, key, f"must not be '{key}'")]
    return []


_VALUES_WORDS = "must be specified when `operator` is 'In' or 'NotIn'"


_NO_VALUES_WORDS = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"


def label_selector(selector: View | None, path: str) -> list[Cause]:
    """Return the rules that a label selector violates, if there is one."""
    if not selector:
        return []
    causes = validate_labels(selector.get("matchLabels"), f"{path}.matchLabels")
    for index, term in enumerate(selector.get("matchExpressions") or ()):
        causes += selector_term(term, f"{path}.matchExpressions[{index}]")
    return causes


def selector_term(term: View, path: str, *, of_nodes: bool = False) -> list[Cause]:
    """Return the rules that one term of a selector violates; terms for nodes can compare too."""
    causes: list[Cause] = []
    operator, values = term.get("operator", ""), term.get("values") or ()
    where = f"{path}.values"
    if operator in {"In", "NotIn"}:
        if not values:
            causes.append(required(where, _VALUES_WORDS))
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            causes.append(forbidden_value(where, _NO_VALUES_WORDS))
    elif of_nodes and operator in {"Gt", "Lt"}:
        if len(values) != 1:
            why = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            causes.append(required(where, why))
    else:
        causes.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    causes += qualified_name(f"{path}.key", term.get("key", ""))
    for index, value in enumerate(values):
        causes += [
            invalid_value(f"{where}[{index}]", value, why) for why in label_value_problems(value)
        ]
    return causes


_PERCENT_WORDS = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)


def count_or_percent(path: str, value: Any, *, up_to_all: bool = True) -> list[Cause]:
    """Return why a value is neither a count nor a percentage, possibly limited to 100."""
    if isinstance(value, int):
        return [invalid_value(path, value, NOT_NEGATIVE)] if value < 0 else []
    if not isinstance(value, str):
        return []
    digits = value.removesuffix("%")
    if digits == value or not (digits.isascii() and digits.isdigit()):
        return [invalid_value(path, value, _PERCENT_WORDS)]
    if up_to_all and int(digits.lstrip("0")[:4] or 0) > 100:
        return [invalid_value(path, value, "must not be greater than 100%")]
    return []


def _under(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def not_negative(obj: View, path: str, *keys: str) -> list[Cause]:
    """Return the negative numbers under these keys."""
    return [
        invalid_value(_under(path, key), obj[key], NOT_NEGATIVE)
        for key in keys
        if isinstance(obj.get(key), int) and obj[key] < 0
    ]


def known_values(of: str, key: str) -> tuple[str, ...]:
    """Return the known values for a field of a type, or for the items of a list.

    Args:
        of: the type, such as `core.v1.Container`.
        key: the field.
    """
    field = facts().definition(f"io.k8s.api.{of}").fields[key]
    return field.enum or (field.item.enum if field.item is not None else ())


def enumeration(
    obj: View, path: str, key: str, of: str, *, but: Container[str] = ()
) -> list[Cause]:
    """Return the value under a key if it is not one of its type's values.

    Args:
        obj: contains the value.
        path: the object's path.
        key: the field.
        of: the type, as for `known_values`.
        but: values of the type that are not supported here.
    """
    value = obj.get(key)
    if value is None:
        return []
    known = [each for each in known_values(of, key) if each not in but]
    return [] if value in known else [not_supported(_under(path, key), value, known)]


def not_among(obj: View, path: str, key: str, known: Sequence[str]) -> list[Cause]:
    """Return the value under a key if it is present and not one of the known ones."""
    value = obj.get(key)
    return (
        [] if value is None or value in known else [not_supported(_under(path, key), value, known)]
    )


def port_number(path: str, value: Any) -> list[Cause]:
    """Return why a number is not a port number."""
    if isinstance(value, int) and not 0 < value < 65_536:
        return [invalid_value(path, value, "must be between 1 and 65535, inclusive")]
    return []


_PORT_NAME = re.compile(r"[-a-z0-9]+")
_LETTER = re.compile(r"[a-z]")


def port_name(path: str, name: str) -> list[Cause]:
    """Return why a name is not a port name (`validation.IsValidPortName`)."""
    causes = []
    if len(name) > 15:
        causes.append(invalid_value(path, name, "must be no more than 15 characters"))
    if not _PORT_NAME.fullmatch(name):
        why = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
        causes.append(invalid_value(path, name, why))
    if not _LETTER.search(name):
        causes.append(invalid_value(path, name, "must contain at least one letter (a-z)"))
    if "--" in name:
        causes.append(invalid_value(path, name, "must not contain consecutive hyphens"))
    if name[:1] == "-" or name[-1:] == "-":
        causes.append(invalid_value(path, name, "must not begin or end with a hyphen"))
    return causes


def port_name_or_number(path: str, value: Any) -> list[Cause]:
    """Return why a value is neither a port name nor a port number."""
    return port_name(path, value) if isinstance(value, str) else port_number(path, value)


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
    return _quantity(str(text))


@lru_cache(maxsize=1024)
def _quantity(text: str) -> float:
    found = re.fullmatch(r"([-+\d.]+)([a-zA-Z]*)(.*)", text)
    if found is None:
        return 0.0
    if found[3] or (found[2] in {"e", "E"} and found[3]):
        return float(text)
    return float(found[1]) * _SUFFIXES.get(found[2], 1)


IP_WORDS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def address(path: str, text: str) -> list[Cause]:
    """Return why a text is not an IP address."""
    return [] if is_address(text) else [invalid_value(path, text, IP_WORDS)]


RANGE_WORDS = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def address_range(path: str, text: str) -> list[Cause]:
    """Return why a text is not a range of IP addresses."""
    return [invalid_value(path, text, RANGE_WORDS)] if network(text) is None else []


def network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the IP network in a text, or None."""
    if "/" not in text:
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def reachable_address(path: str, text: str, *, loopback: bool = True) -> list[Cause]:
    """Return why an address can't be an endpoint's (`ValidateEndpointIP`).

    Unlike on a real server, loopback is allowed, for the backends of tests.

    Args:
        path: the address's path.
        text: the address.
        loopback: whether it may be on loopback.
    """
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return [invalid_value(path, text, IP_WORDS)]
    if found.is_unspecified:
        return [invalid_value(path, text, f"may not be unspecified ({found})")]
    if found.is_loopback and not loopback:
        why = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
        return [invalid_value(path, text, why)]
    if found.is_link_local:
        why = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
        return [invalid_value(path, text, why)]
    if found.is_multicast:
        why = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
        local = found in ipaddress.ip_network("ff02::/16" if found.version == 6 else "224.0.0.0/24")
        return [invalid_value(path, text, why)] if local else []
    return []
