"""Converts a decoded body to its type: checked, unknown fields removed, empty ones dropped.

This is what a round trip through the Go types does to a body of a built-in kind, with the messages
of Go's JSON decoder for a value of the wrong type.
"""

import base64
import binascii
import functools
import re
from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from listwatch.schema.facts import Form, Schema


class WrongTypeError(Exception):
    """A value that Go could not decode; the message is Go's."""


class Pairs(dict[str, Any]):
    """A JSON object in which some keys are repeated; the last value counts."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        seen: set[str] = set()
        self.repeated: list[str] = []
        for key, _ in pairs:
            if key in seen and key not in self.repeated:
                self.repeated.append(key)
            seen.add(key)


#: Strings that Go keeps when empty, because they are pointers.
_POINTER_STRINGS = frozenset(
    (
        "apiGroup",
        "appProtocol",
        "completionMode",
        "currentVolumeAttributesClassName",
        "failurePolicy",
        "fsGroupChangePolicy",
        "fsGroupPolicy",
        "gmsaCredentialSpec",
        "gmsaCredentialSpecName",
        "holderIdentity",
        "hostnameOverride",
        "ingressClassName",
        "initiatorName",
        "internalTrafficPolicy",
        "ipFamilyPolicy",
        "ipMode",
        "loadBalancerClass",
        "localhostProfile",
        "managedBy",
        "matchPolicy",
        "mountPropagation",
        "nodeAffinityPolicy",
        "nodeTaintsPolicy",
        "parameterNotFoundAction",
        "persistentVolumeName",
        "podReplacementPolicy",
        "preemptionPolicy",
        "preferredHolder",
        "procMount",
        "reclaimPolicy",
        "recursiveReadOnly",
        "reinvocationPolicy",
        "resourceClaimName",
        "resourceClaimTemplateName",
        "runAsUserName",
        "runtimeClassName",
        "seLinuxChangePolicy",
        "scope",
        "signerName",
        "stopSignal",
        "storageClassName",
        "succeededIndexes",
        "supplementalGroupsPolicy",
        "timeZone",
        "trafficDistribution",
        "unhealthyPodEvictionPolicy",
        "volumeAttributesClassName",
        "volumeBindingMode",
        "volumeMode",
    )
)
#: Booleans and numbers that Go drops when false or 0, because they are not pointers.
_PLAIN_SCALARS = frozenset(
    (
        "chapAuthDiscovery",
        "chapAuthSession",
        "clusterScope",
        "count",
        "deprecatedCount",
        "failureThreshold",
        "generation",
        "globalDefault",
        "healthCheckNodePort",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostPort",
        "initialDelaySeconds",
        "insecureSkipTLSVerify",
        "minReadySeconds",
        "nodePort",
        "partition",
        "paused",
        "periodSeconds",
        "publishNotReadyAddresses",
        "readOnly",
        "signal",
        "sizeBytes",
        "sslEnabled",
        "stdin",
        "stdinOnce",
        "successThreshold",
        "timeoutSeconds",
        "tty",
        "unschedulable",
    )
)
#: Fields with such names that are pointers in other types.
_DROPPED = frozenset(
    (
        ("Condition", "observedGeneration"),
        ("PodCondition", "observedGeneration"),
        ("ServiceBackendPort", "number"),
    )
)
#: Numbers and booleans of status types that are pointers.
_POINTER_STATUS = frozenset(
    (
        "collisionCount",
        "currentCPUUtilizationPercentage",
        "exitCode",
        "ready",
        "started",
        "terminating",
        "terminatingReplicas",
    )
)
#: Fields whose empty value one Go type keeps, as a pointer, and another drops.
_KEPT_EMPTY: Mapping[str, frozenset[str]] = {
    "AzureDiskVolumeSource": frozenset(("cachingMode", "fsType", "kind", "readOnly")),
    "AzureFilePersistentVolumeSource": frozenset(("secretNamespace",)),
    "ClientIPConfig": frozenset(("timeoutSeconds",)),
    "ClusterTrustBundleProjection": frozenset(("name",)),
    "Container": frozenset(("restartPolicy",)),
    "EphemeralContainer": frozenset(("restartPolicy",)),
    "GlusterfsPersistentVolumeSource": frozenset(("endpointsNamespace",)),
    # no policies differ from an absent list
    "HPAScalingRules": frozenset(("policies",)),
    "HorizontalPodAutoscalerStatus": frozenset(("observedGeneration",)),
    "IngressClassParametersReference": frozenset(("namespace",)),
    "LeaseSpec": frozenset(("strategy",)),
    "LocalVolumeSource": frozenset(("fsType",)),
    "MutatingWebhook": frozenset(("timeoutSeconds",)),
    "NetworkPolicyPort": frozenset(("protocol",)),
    "NodeSwapStatus": frozenset(("capacity",)),
    "PodDNSConfigOption": frozenset(("value",)),
    "PodFailurePolicyOnExitCodesRequirement": frozenset(("containerName",)),
    "RollingUpdateStatefulSetStrategy": frozenset(("partition",)),
    "TypedObjectReference": frozenset(("namespace",)),
    "ValidatingWebhook": frozenset(("timeoutSeconds",)),
    "VolumeNodeResources": frozenset(("count",)),
    "Endpoint": frozenset(("hostname", "nodeName", "zone")),
    "EndpointAddress": frozenset(("nodeName",)),
    "CustomResourceDefinitionVersion": frozenset(("deprecationWarning",)),
    "ServiceReference": frozenset(("path",)),
    "ValidationRule": frozenset(("reason",)),
    "WebhookClientConfig": frozenset(("url",)),
}


def keeps_empty(schema: Schema, key: str, field: Schema) -> bool:
    """Return whether Go writes a field of a struct even when it is empty, false or 0."""
    name, form = schema.go_name, field.form
    if key in schema.required:
        return True
    if key in _KEPT_EMPTY.get(name, ()):
        return True
    if form in _STRINGS:
        return key in _POINTER_STRINGS or schema.defaults.get(key) == ""
    if form in _COLLECTIONS:
        # an empty list of owners removes them, an absent one changes nothing
        return key == "managedFields"
    if form in _SCALARS:
        in_status = name.endswith("Status") and key not in _POINTER_STATUS
        plain = (name, key) in _DROPPED or key in _PLAIN_SCALARS
        return not (plain or in_status)
    return True


_STRINGS = frozenset((Form.STRING, Form.BYTES))
_COLLECTIONS = frozenset((Form.LIST, Form.MAP))
_SCALARS = frozenset((Form.BOOLEAN, Form.INTEGER))
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE]|)")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _json_word(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int():
            return "number"
        case float():
            return f"number {value}"
        case list():
            return "array"
        case dict():
            return "object"
    return "null"


class Conversion:
    """One pass over one body.

    Attributes:
        problems: what a strict decoder refuses: unknown and repeated fields, with their paths.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def convert(self, value: object, schema: Schema, place: str = "") -> Any:
        """Return the value as its type has it.

        Raises:
            WrongTypeError: with the message of Go's decoder.
        """
        return self._value(value, schema, "", "", place)

    def _fail(self, value: object, schema: Schema, struct: str, path: str) -> WrongTypeError:
        place = f"Go struct field {struct}.{path}" if struct else "Go value"
        return WrongTypeError(
            f"json: cannot unmarshal {_json_word(value)} into {place} of type {schema.go_type}"
        )

    # `path` is Go's, without indices, for errors; `place` has them, for problems
    def _value(self, value: Any, schema: Schema, struct: str, path: str, place: str) -> Any:
        form = schema.form
        if form is Form.STRING:
            if isinstance(value, str):
                return value
        elif form is Form.STRUCT:
            if isinstance(value, dict):
                return self._struct(value, schema, path, place)
        elif form is Form.LIST:
            if isinstance(value, list):
                item = schema.item
                assert item is not None  # noqa: S101 - a LIST has one
                return [
                    _zero(item)
                    if each is None
                    else self._value(each, item, struct, path, f"{place}[{index}]")
                    for index, each in enumerate(value)
                ]
        elif form is Form.MAP:
            if isinstance(value, dict):
                item = schema.item
                assert item is not None  # noqa: S101 - a MAP has one
                self._repeated(value, place)
                return {
                    key: _zero(item)
                    if each is None
                    else self._value(each, item, struct, path, f"{place}.{key}")
                    for key, each in value.items()
                }
        elif form is Form.ANY:
            return value
        else:
            return self._scalar(value, schema, struct, path)
        raise self._fail(value, schema, struct, path)

    def _repeated(
        self, value: dict[str, Any], place: str, known: Container[str] | None = None
    ) -> None:
        """Record repeated keys; of a struct only known fields, because others are skipped."""
        if isinstance(value, Pairs):
            prefix = f"{place}." if place else ""
            self.problems += [
                f'duplicate field "{prefix}{key}"'
                for key in value.repeated
                if known is None or key in known
            ]

    def _struct(self, value: dict[str, Any], schema: Schema, path: str, place: str) -> Any:
        self._repeated(value, place, schema.fields)
        fields, name = schema.fields, schema.go_name
        result: dict[str, Any] = {}
        for key, each in value.items():
            field = fields.get(key)
            here = f"{place}.{key}" if place else key
            if field is None:
                self.problems.append(f'unknown field "{here}"')
                continue
            if each is None:
                continue
            made = self._value(each, field, name, f"{path}.{key}" if path else key, here)
            if made:
                result[key] = made
                continue
            if made is not None and keeps_empty(schema, key, field):
                result[key] = made
        if name.endswith("Condition"):
            _complete_condition(result, schema)
        return result

    def _scalar(self, value: Any, schema: Schema, struct: str, path: str) -> Any:
        form = schema.form
        if isinstance(value, bool):
            if form is Form.BOOLEAN:
                return value
        elif form is Form.INTEGER and isinstance(value, int):
            bits = 31 if schema.go_type == "int32" else 63
            if -(1 << bits) <= value < 1 << bits:
                return value
            raise WrongTypeError(
                f"json: cannot unmarshal number {value} into Go struct field "
                f"{struct}.{path} of type {schema.go_type}"
            )
        elif isinstance(value, int | float):
            if form is Form.NUMBER or (form is Form.INT_OR_STRING and isinstance(value, int)):
                return value
            if form is Form.QUANTITY:
                return canonical_quantity(value)
        elif isinstance(value, str) and form in _FROM_STRING:
            return _FROM_STRING[form](value)
        elif form is Form.BYTES and isinstance(value, list):
            made = _bytes_of(value)
            if made is not None:
                return made
        raise self._fail(value, schema, struct, path)


def complete_conditions(obj: Mapping[str, Any], schema: Schema) -> None:
    """Add to an object's status conditions the fields that Go always writes, in place."""
    status = schema.fields.get("status")
    field = None if status is None else status.fields.get("conditions")
    if field is not None and field.item is not None:
        for condition in (obj.get("status") or {}).get("conditions") or ():
            _complete_condition(condition, field.item)


def _complete_condition(condition: dict[str, Any], schema: Schema) -> None:
    """Add the fields of a condition that Go always writes: times as null, text as empty."""
    for key, field in schema.fields.items():
        if key in condition:
            continue
        if field.form is Form.TIME:
            condition[key] = None
        elif key in schema.required and field.form is Form.STRING:
            condition[key] = ""


def _bytes_of(numbers: list[Any]) -> str | None:
    """Return bytes given as numbers, which Go also accepts, as base64; None if they are not."""
    try:
        return base64.b64encode(bytes(0 if each is None else each for each in numbers)).decode()
    except (TypeError, ValueError):
        return None


def _zero(schema: Schema) -> Any:
    match schema.form:
        case Form.STRUCT | Form.MAP:
            return {}
        case Form.LIST:
            return []
        case Form.INTEGER | Form.NUMBER | Form.INT_OR_STRING:
            return 0
        case Form.BOOLEAN:
            return False
        case Form.STRING | Form.BYTES:
            return ""
        case Form.QUANTITY:
            return "0"
    return None


def _checked_base64(text: str) -> str:
    plain = text.replace("\n", "").replace("\r", "")
    try:
        data = base64.b64decode(plain, validate=True)
    except (binascii.Error, ValueError):
        bad = next(
            (
                index
                for index, char in enumerate(text)
                if not (char.isascii() and (char.isalnum() or char in "+/=\r\n"))
            ),
            len(text.rstrip("=")) if "=" in text else len(text) - len(text) % 4,
        )
        raise WrongTypeError(f"illegal base64 data at input byte {bad}") from None
    return base64.b64encode(data).decode()


def canonical_time(text: str, *, micro: bool) -> str | None:
    """Return a timestamp in UTC, to the second, or with exactly six decimals.

    Raises:
        WrongTypeError: in Go's words.
    """
    if not text and not micro:
        return None
    layout = "2006-01-02T15:04:05.000000Z07:00" if micro else "2006-01-02T15:04:05Z07:00"
    found = _TIME.fullmatch(text)
    if found is None:
        raise WrongTypeError(
            f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"'
        )
    fraction, zone = found[7] or "", found[8]
    if micro and len(fraction) != 7:
        rest = text[found.end(6) :]
        raise WrongTypeError(
            f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as ".000000"'
        )
    try:
        moment = datetime.fromisoformat(text[: found.end(6)] + zone.replace("Z", "+00:00"))
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        what = next((word for word in ("month", "day", "hour") if word in str(error)), "second")
        raise WrongTypeError(f'parsing time "{text}": {what} out of range') from None
    plain = moment.replace(tzinfo=None)
    if plain == datetime.min and not fraction.strip(".0"):  # noqa: DTZ901 - Go's value, without a zone
        return None  # Go's zero time, which its types write as null
    # not strftime, which writes a year before 1000 with fewer than four digits
    return plain.isoformat(timespec="seconds") + (fraction if micro else "") + "Z"


#: In characters: far beyond any real quantity, and short enough to be fast.
_LONGEST_QUANTITY = 40
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_DECIMAL_POWERS = {suffix: power for power, suffix in _DECIMAL.items()}


@functools.lru_cache(maxsize=4096)
def canonical_quantity(value: str | float) -> str:
    """Return a quantity in its canonical form: no fraction, the largest suffix that allows it.

    The rules are those of `apimachinery/pkg/api/resource`.

    Raises:
        WrongTypeError: in Go's words.
    """
    text = value if isinstance(value, str) else str(value)
    found = _QUANTITY.fullmatch(text)
    if found is None or len(text) > _LONGEST_QUANTITY:
        if not text:
            raise WrongTypeError("unable to parse quantity's suffix")
        raise WrongTypeError(
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    digits, suffix = found.groups()
    try:
        number = Decimal(digits)
    except InvalidOperation:
        raise WrongTypeError("unable to parse numeric part of quantity") from None
    if _stays(digits, suffix):
        return text
    if suffix.endswith("i"):
        power = _BINARY.index(suffix)
        whole = number * 1024**power
        if abs(whole) >= 1024 and whole == int(whole):
            amount, power = int(whole), 0
            while power < 6 and amount % 1024 == 0 and amount:
                amount //= 1024
                power += 1
            return f"{amount}{_BINARY[power]}"
        suffix = ""
        number = whole
    exponent = suffix[:1] in ("e", "E") and len(suffix) > 1
    shift = int(suffix[1:]) if exponent else _DECIMAL_POWERS[suffix]
    if abs(shift) > 30:
        raise WrongTypeError("unable to parse quantity's suffix")
    number = number.scaleb(shift)
    if not number:
        return "0"
    for power in (18, 15, 12, 9, 6, 3, 0, -3, -6, -9):
        scaled = number.scaleb(-power)
        if scaled == int(scaled):
            if exponent:
                return f"{int(scaled)}e{power}" if power else str(int(scaled))
            return f"{int(scaled)}{_DECIMAL[power]}"
    nano = number.scaleb(9).to_integral_value(rounding="ROUND_UP")
    return f"{int(nano)}n"


def _stays(digits: str, suffix: str) -> bool:
    """Return whether a quantity stays as written, as `ParseQuantity` keeps most.

    Checks only the digits, so a sign, a point without a fraction and an exponent stay.
    """
    whole, _, fraction = digits.lstrip("+-").partition(".")
    whole = whole.lstrip("0") or "0"
    if suffix.endswith("i"):
        return not fraction and len(whole) < 10 and int(whole) % 8 != 0
    exponent = suffix[:1] in {"e", "E"} and len(suffix) > 1
    power = int(suffix[1:]) if exponent else _DECIMAL_POWERS[suffix]
    power -= len(fraction)
    shown = whole + fraction
    if not -9 <= power <= 30 or len(shown) > 18:
        return False
    return power % 3 == 0 and not shown.endswith("000") and not shown.startswith("0")


_FROM_STRING: Mapping[Form, Callable[[str], str | None]] = {
    Form.INT_OR_STRING: str,
    Form.QUANTITY: canonical_quantity,
    Form.BYTES: _checked_base64,
    Form.TIME: lambda text: canonical_time(text, micro=False),
    Form.MICRO_TIME: lambda text: canonical_time(text, micro=True),
}
