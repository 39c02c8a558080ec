"""Kubernetes' CEL extensions: quantities, URLs, IP addresses, CIDRs, versions, named formats.

Rules: k8s.io/apiserver, pkg/cel/library; k8s.io/apimachinery, pkg/api/resource (quantities).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import operator
import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import total_ordering
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from listwatch.cel.errors import EvaluationError
from listwatch.cel.functions import Function, function, method, plain
from listwatch.cel.types import (
    BOOL,
    CIDR,
    DOUBLE,
    INT,
    IP,
    NAMED_FORMAT,
    QUANTITY,
    SEMVER,
    STRING,
    URL,
    Type,
    list_of,
    map_of,
    optional_of,
)
from listwatch.cel.values import (
    NOTHING,
    Optional,
    Value,
    checked_int,
    in_int64,
    parse_date,
    parse_timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

_QUANTITY = re.compile(
    r"([+-]?)(\d+\.?\d*|\.\d+)(?:(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?)|[eE]([+-]?\d+))", re.ASCII
)
_SUFFIX = {
    "": Fraction(1),
    **{unit: Fraction(1, 1000**i) for i, unit in enumerate(("m", "u", "n"), 1)},
    **{unit: Fraction(1000**i) for i, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(1024**i) for i, unit in enumerate("KMGTPE", 1)},
}
_NANO = 1_000_000_000


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount, exact to a billionth; smaller digits are rounded away from zero."""

    type_name: ClassVar[str] = QUANTITY.name
    value: Fraction
    whole: bool = field(default=True, compare=False)

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Parse `1.5Gi`, `100m` or `2e3`. Raises ValueError for anything else."""
        match = _QUANTITY.fullmatch(text)
        if match is None or len(text) > 1000:
            raise ValueError(
                "quantities must match the regular expression "
                "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            )
        sign, number, suffix, exponent = match.groups()
        if exponent is not None and abs(int(exponent)) > 999:
            raise ValueError("unable to parse quantity's suffix")
        scale = _SUFFIX[suffix] if exponent is None else Fraction(10) ** int(exponent)
        whole, _, decimals = number.partition(".")
        value = Fraction(int(whole or "0") * 10 ** len(decimals) + int(decimals or "0")) * scale
        nano = -((-value / 10 ** len(decimals) * _NANO).__floor__())
        short = _kept_as_integer(
            whole.lstrip("0"), decimals, scale, binary=suffix.endswith("i") if suffix else False
        )
        return cls(Fraction(-nano if sign == "-" else nano, _NANO), short)

    @property
    def integer(self) -> int | None:
        """Return the amount as a 64-bit integer, or None if the reference has no integer for it.

        It has none for an amount written with decimals or a small unit: `1000m` is not an integer.
        """
        if not self.whole or self.value.denominator != 1 or not in_int64(self.value.numerator):
            return None
        return self.value.numerator


def _kept_as_integer(digits: str, decimals: str, scale: Fraction, *, binary: bool) -> bool:
    if decimals or scale < 1:
        return False
    if binary:
        return 14 - len(digits) - int((scale.numerator.bit_length() - 1) * 3 / 10) >= 0
    return len(digits) <= 18


def _as_integer(quantity: Quantity) -> int:
    if quantity.integer is None:
        raise EvaluationError("cannot convert value to integer")
    return quantity.integer


def _plus(one: Quantity, other: Quantity | int) -> Quantity:
    return _result(one, other, operator.add)


def _minus(one: Quantity, other: Quantity | int) -> Quantity:
    return _result(one, other, operator.sub)


def _result(
    one: Quantity, other: Quantity | int, combine: Callable[[Fraction, Fraction], Fraction]
) -> Quantity:
    right = other if isinstance(other, Quantity) else Quantity(Fraction(other))
    whole = (one.whole or not one.value) and (right.whole or not right.value)
    return Quantity(combine(one.value, right.value), whole)


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


@dataclass(frozen=True, slots=True)
class ParsedURL:
    """An absolute URL or an absolute path."""

    type_name: ClassVar[str] = URL.name
    scheme: str
    host: str
    hostname: str
    port: str
    escaped_path: str
    query: dict[str, list[str]] = field(hash=False)
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> ParsedURL:
        """Parse a URL. Raises ValueError for anything else, including a relative one."""
        if not text:
            raise ValueError('parse "": empty url')
        if re.search(r"[\x00-\x1f\x7f]", text):
            raise ValueError(f'parse "{text}": net/url: invalid control character in URL')
        if not text.startswith("/") and not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", text):
            raise ValueError(f'parse "{text}": invalid URI for request')
        # A request's URI has no fragment: '#' is an ordinary character of its path or query.
        parts = urlsplit(text.replace("#", "%23") if "#" in text else text)
        if parts.scheme and not text[len(parts.scheme) + 1 :].startswith("/"):
            raise ValueError(f'parse "{text}": invalid URI for request')
        bad = re.search(r"%(?![0-9a-fA-F]{2}).{0,2}", parts.netloc + parts.path)
        if bad:
            raise ValueError(f'parse "{text}": invalid URL escape "{bad[0]}"')
        host = parts.netloc.rpartition("@")[2]
        if re.search(r'[\s<>"\\^`{}|]', host):
            raise ValueError(f'parse "{text}": invalid character in host name')
        hostname, port = _host_and_port(text, host)
        path = parts.path
        if re.search(r"[^!$&\'()*+,;=:@/\w.~%-]", path, re.ASCII):
            path = quote(unquote(path), safe="/$&+,:;=@-._~")
        query: dict[str, list[str]] = {}
        for key, value in parse_qsl(parts.query, keep_blank_values=True):
            query.setdefault(key, []).append(value)
        return cls(parts.scheme, host, hostname, port, path, query, text)


def _host_and_port(text: str, host: str) -> tuple[str, str]:
    if host.startswith("["):
        inner, closed, rest = host[1:].partition("]")
        if not closed:
            raise ValueError(f"parse \"{text}\": missing ']' in host")
        port = rest
    else:
        inner, colon, port = host.partition(":")
        port = colon + port
    if port and not re.fullmatch(r":\d*", port, re.ASCII):
        raise ValueError(f'parse "{text}": invalid port "{port}" after host')
    return unquote(inner), port[1:]


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _parse_address(text: str) -> Address:
    if "%" in text:
        raise ValueError(f'IP address "{text}" with zone value is not allowed')
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(
            f'IP Address "{text}" parse error during conversion from string: '
            f'ParseAddr("{text}"): unable to parse IP'
        ) from None
    if address.version == 6 and address.ipv4_mapped is not None:
        raise ValueError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return address


@dataclass(frozen=True, slots=True)
class IPValue:
    """An IP address."""

    type_name: ClassVar[str] = IP.name
    address: Address

    @classmethod
    def parse(cls, text: str) -> IPValue:
        """Parse an address. Raises ValueError otherwise, also for zones and mapped addresses."""
        return cls(_parse_address(text))

    def __str__(self) -> str:
        """Return the canonical form."""
        return str(self.address)


@dataclass(frozen=True, slots=True)
class CIDRValue:
    """An address with a prefix length; host bits are kept."""

    type_name: ClassVar[str] = CIDR.name
    interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface

    @classmethod
    def parse(cls, text: str) -> CIDRValue:
        """Parse `192.168.0.0/16`. Raises ValueError for anything else."""
        address, slash, length = text.partition("/")
        if not slash or not re.fullmatch(r"0|[1-9]\d{0,2}", length, re.ASCII):
            raise ValueError(
                "network address parse error during conversion from string: "
                f"netip.ParsePrefix(\"{text}\"): no '/' or a bad length"
            )
        try:
            _parse_address(address)
            return cls(ipaddress.ip_interface(text))
        except ValueError as error:
            raise ValueError(
                f"network address parse error during conversion from string: {error}"
            ) from None

    @property
    def length(self) -> int:
        """Return the number of bits of the prefix."""
        return self.interface.network.prefixlen

    def __str__(self) -> str:
        """Return the address and the prefix length."""
        return f"{self.interface.ip}/{self.length}"


def _contains_ip(cidr: CIDRValue, other: IPValue | str) -> bool:
    address = _read(IPValue.parse)(other) if isinstance(other, str) else other
    assert isinstance(address, IPValue)
    return address.address in cidr.interface.network


def _contains_cidr(cidr: CIDRValue, other: CIDRValue | str) -> bool:
    inner = _read(CIDRValue.parse)(other) if isinstance(other, str) else other
    assert isinstance(inner, CIDRValue)
    return inner.length >= cidr.length and inner.interface.ip in cidr.interface.network


def _masked(cidr: CIDRValue) -> CIDRValue:
    return CIDRValue(ipaddress.ip_interface(str(cidr.interface.network)))


def _is_canonical(text: str) -> bool:
    return str(_read(IPValue.parse)(text)) == text


_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
    re.ASCII,
)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version by semver.org 2.0.0. The build metadata is ignored in comparisons."""

    type_name: ClassVar[str] = SEMVER.name
    major: int
    minor: int
    patch: int
    pre_release: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, normalize: object = None) -> Semver:
        """Parse `1.2.3-rc.1`; normalized, also `v1.2` and `01.2.3`. Raises ValueError otherwise."""
        plain_text = text
        if normalize:
            version, mark, rest = re.fullmatch(r"v?([^+-]*)([+-]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]  # matches all
            numbers = [part.lstrip("0") or "0" if part else part for part in version.split(".")]
            plain_text = ".".join([*numbers, *["0"] * (3 - len(numbers))]) + mark + rest
        match = _SEMVER.fullmatch(plain_text)
        if match is None:
            raise ValueError(f"invalid semver {text!r}")
        numbers_read = [int(match[i]) for i in (1, 2, 3)]
        if any(number >= 1 << 64 for number in numbers_read):
            raise ValueError(f"invalid semver {text!r}: value out of range")
        major, minor, patch = numbers_read
        return cls(major, minor, patch, tuple(match[4].split(".")) if match[4] else ())

    def _key(self) -> tuple[object, ...]:
        parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in self.pre_release)
        return (self.major, self.minor, self.patch, not parts, parts)

    def __eq__(self, other: object) -> bool:
        """Compare without the build metadata."""
        return isinstance(other, Semver) and self._key() == other._key()

    def __lt__(self, other: Semver) -> bool:
        """Order as specified: a pre-release precedes its release."""
        return self._key() < other._key()

    def __hash__(self) -> int:
        """Return a hash by what counts for equality."""
        return hash(self._key())


def _compare(one: Semver | Quantity, other: Semver | Quantity) -> int:
    return (one > other) - (one < other)  # type: ignore[operator]  # overloads: both have the same type


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A named format for text. Equal by name."""

    type_name: ClassVar[str] = NAMED_FORMAT.name
    name: str
    check: Callable[[str], list[str]] = field(compare=False)
    pattern_size: int = field(compare=False)


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_LABEL_VALUE = re.compile(rf"({_NAME.pattern})?", re.ASCII)
_UUID = re.compile(
    r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE | re.ASCII
)

_LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_MESSAGE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_1035_MESSAGE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_NAME_MESSAGE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_MESSAGE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def _checker(
    pattern: re.Pattern[str], longest: int, message: str, *, prefix: bool = False
) -> Callable[[str], list[str]]:
    def check(text: str) -> list[str]:
        problems = []
        if len(text.encode(errors="replace")) > longest:
            problems.append(f"must be no more than {longest} bytes")
        # A prefix may end in a dash or dot: the generated part follows.
        whole = re.sub(r"[-.]$", "a", text) if prefix else text
        if pattern.fullmatch(whole) is None:
            problems.append(message)
        return problems

    return check


_check_subdomain = _checker(_SUBDOMAIN, 253, _SUBDOMAIN_MESSAGE)


def _check_qualified_name(text: str) -> list[str]:
    problems = []
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        reason = _NAME_MESSAGE.removeprefix("name part ")
        where = "an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a qualified name {reason} with {where}"]
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in _check_subdomain(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if _NAME.fullmatch(name) is None:
        problems.append(_NAME_MESSAGE)
    return problems


def _check_uri(text: str) -> list[str]:
    try:
        ParsedURL.parse(text)
    except ValueError as error:
        return [str(error)]
    return []


def _check_base64(text: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return []


def _parses(parse: Callable[[str], object], message: str) -> Callable[[str], list[str]]:
    def check(text: str) -> list[str]:
        try:
            parse(text)
        except (ValueError, EvaluationError):
            return [message]
        return []

    return check


FORMATS = MappingProxyType(
    {
        key: NamedFormat(name, check, pattern_size)
        for key, name, check, pattern_size in (
            ("dns1123Label", "DNS1123Label", _checker(_LABEL, 63, _LABEL_MESSAGE), 30),
            ("dns1123Subdomain", "DNS1123Subdomain", _check_subdomain, 60),
            ("dns1035Label", "DNS1035Label", _checker(_LABEL_1035, 63, _LABEL_1035_MESSAGE), 30),
            ("qualifiedName", "QualifiedName", _check_qualified_name, 60),
            (
                "dns1123LabelPrefix", "DNS1123LabelPrefix",
                _checker(_LABEL, 63, _LABEL_MESSAGE, prefix=True), 30,
            ),
            (
                "dns1123SubdomainPrefix", "DNS1123SubdomainPrefix",
                _checker(_SUBDOMAIN, 253, _SUBDOMAIN_MESSAGE, prefix=True), 60,
            ),
            (
                "dns1035LabelPrefix", "DNS1035LabelPrefix",
                _checker(_LABEL_1035, 63, _LABEL_1035_MESSAGE, prefix=True), 30,
            ),
            ("labelValue", "LabelValue", _checker(_LABEL_VALUE, 63, _LABEL_VALUE_MESSAGE), 40),
            ("uri", "URI", _check_uri, 1100),
            (
                "uuid", "uuid",
                lambda text: [] if _UUID.fullmatch(text) else ["does not match the UUID format"],
                100,
            ),
            ("byte", "byte", _check_base64, 100),
            ("date", "date", _parses(parse_date, "invalid date"), 100),
            ("datetime", "datetime", _parses(parse_timestamp, "invalid datetime"), 100),
        )
    }
)  # fmt: skip


def _validate(named: NamedFormat, text: str) -> Optional:
    problems = named.check(text)
    return Optional(problems) if problems else NOTHING


def _named(name: str) -> Optional:
    return Optional(FORMATS[name]) if name in FORMATS else NOTHING


def _read(parse: Callable[..., _T]) -> Callable[..., _T]:
    def read(*arguments: Value) -> _T:
        try:
            return parse(*arguments)
        except ValueError as error:
            raise EvaluationError(str(error)) from None

    return read


def _read_url(text: str) -> ParsedURL:
    try:
        return ParsedURL.parse(text)
    except ValueError as error:
        raise EvaluationError(f"URL parse error during conversion from string: {error}") from None


def _can_read(parse: Callable[..., object]) -> Callable[..., bool]:
    def can(*arguments: Value) -> bool:
        try:
            parse(*arguments)
        except ValueError:
            return False
        return True

    return can


def _ip_of(value: CIDRValue | str) -> IPValue:
    if isinstance(value, CIDRValue):
        return IPValue(value.interface.ip)
    return _read(IPValue.parse)(value)


def _is_global_unicast(value: IPValue) -> bool:
    address = value.address
    broadcast = address == ipaddress.IPv4Address("255.255.255.255")
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or broadcast
    )


def _is_link_local_multicast(value: IPValue) -> bool:
    address = value.address
    if isinstance(address, ipaddress.IPv4Address):
        return address in ipaddress.ip_network("224.0.0.0/24")
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02


def _getter(name: str, of: Type, result: Type, label: str, read: Callable[..., Value]) -> Function:
    return function(name, read, method(label, of, result))


_BOTH = (QUANTITY, SEMVER)
_QUERY = map_of(STRING, list_of(STRING))

KUBERNETES: tuple[Function, ...] = (
    function("quantity", _read(Quantity.parse), plain("string_to_quantity", STRING, QUANTITY)),
    function("isQuantity", _can_read(Quantity.parse), plain("is_quantity_string", STRING, BOOL)),
    function("sign", lambda q: _sign(q.value), method("quantity_sign", QUANTITY, INT)),
    function(
        "isGreaterThan", lambda one, other: one > other,
        *(method(f"{t.name[11:].lower()}_is_greater_than", t, t, BOOL) for t in _BOTH),
    ),
    function(
        "isLessThan", lambda one, other: one < other,
        *(method(f"{t.name[11:].lower()}_is_less_than", t, t, BOOL) for t in _BOTH),
    ),
    function(
        "compareTo", _compare,
        *(method(f"{t.name[11:].lower()}_compare_to", t, t, INT) for t in _BOTH),
    ),
    _getter("asApproximateFloat", QUANTITY, DOUBLE, "quantity_get_float", lambda q: float(q.value)),
    _getter("asInteger", QUANTITY, INT, "quantity_get_int", _as_integer),
    _getter("isInteger", QUANTITY, BOOL, "quantity_is_integer", lambda q: q.integer is not None),
    function(
        "add", _plus,
        method("quantity_add", QUANTITY, QUANTITY, QUANTITY),
        method("quantity_add_int", QUANTITY, INT, QUANTITY),
    ),
    function(
        "sub", _minus,
        method("quantity_sub", QUANTITY, QUANTITY, QUANTITY),
        method("quantity_sub_int", QUANTITY, INT, QUANTITY),
    ),
    function("url", _read_url, plain("string_to_url", STRING, URL)),
    function("isURL", _can_read(ParsedURL.parse), plain("is_url_string", STRING, BOOL)),
    _getter("getScheme", URL, STRING, "url_get_scheme", lambda url: url.scheme),
    _getter("getHost", URL, STRING, "url_get_host", lambda url: url.host),
    _getter("getHostname", URL, STRING, "url_get_hostname", lambda url: url.hostname),
    _getter("getPort", URL, STRING, "url_get_port", lambda url: url.port),
    _getter("getEscapedPath", URL, STRING, "url_get_escaped_path", lambda url: url.escaped_path),
    _getter("getQuery", URL, _QUERY, "url_get_query", lambda url: url.query),
    function("ip", _ip_of, plain("string_to_ip", STRING, IP), method("cidr_ip", CIDR, IP)),
    function("isIP", _can_read(IPValue.parse), plain("is_ip", STRING, BOOL)),
    function("ip.isCanonical", _is_canonical, plain("ip_is_canonical", STRING, BOOL)),
    _getter("family", IP, INT, "ip_family", lambda ip: ip.address.version),
    _getter("isUnspecified", IP, BOOL, "ip_is_unspecified", lambda ip: ip.address.is_unspecified),
    _getter("isLoopback", IP, BOOL, "ip_is_loopback", lambda ip: ip.address.is_loopback),
    _getter(
        "isLinkLocalMulticast", IP, BOOL, "ip_is_link_local_multicast", _is_link_local_multicast
    ),
    _getter(
        "isLinkLocalUnicast", IP, BOOL, "ip_is_link_local_unicast",
        lambda ip: ip.address.is_link_local,
    ),
    _getter("isGlobalUnicast", IP, BOOL, "ip_is_global_unicast", _is_global_unicast),
    function("cidr", _read(CIDRValue.parse), plain("string_to_cidr", STRING, CIDR)),
    function("isCIDR", _can_read(CIDRValue.parse), plain("is_cidr", STRING, BOOL)),
    function(
        "containsIP", _contains_ip,
        method("cidr_contains_ip_string", CIDR, STRING, BOOL),
        method("cidr_contains_ip_ip", CIDR, IP, BOOL),
    ),
    function(
        "containsCIDR", _contains_cidr,
        method("cidr_contains_cidr_string", CIDR, STRING, BOOL),
        method("cidr_contains_cidr", CIDR, CIDR, BOOL),
    ),
    _getter("prefixLength", CIDR, INT, "cidr_prefix_length", lambda cidr: cidr.length),
    _getter("masked", CIDR, CIDR, "cidr_masked", _masked),
    function(
        "semver", _read(Semver.parse),
        plain("string_to_semver", STRING, SEMVER),
        plain("string_bool_to_semver", STRING, BOOL, SEMVER),
    ),
    function(
        "isSemver", _can_read(Semver.parse),
        plain("is_semver_string", STRING, BOOL),
        plain("is_semver_string_bool", STRING, BOOL, BOOL),
    ),
    _getter("major", SEMVER, INT, "semver_major", lambda version: checked_int(version.major)),
    _getter("minor", SEMVER, INT, "semver_minor", lambda version: checked_int(version.minor)),
    _getter("patch", SEMVER, INT, "semver_patch", lambda version: checked_int(version.patch)),
    function("format.named", _named, plain("format-named", STRING, optional_of(NAMED_FORMAT))),
    function(
        "validate", _validate,
        method("format-validate", NAMED_FORMAT, STRING, optional_of(list_of(STRING))),
    ),
    *(
        function(f"format.{key}", lambda named=named: named, plain(f"format.{key}", NAMED_FORMAT))
        for key, named in FORMATS.items()
    ),
)  # fmt: skip

__all__ = ["FORMATS", "KUBERNETES", "CIDRValue", "IPValue", "NamedFormat", "Quantity", "Semver"]
