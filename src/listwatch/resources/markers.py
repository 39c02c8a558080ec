"""Markers for properties of fields that Python types can't express: `Annotated[T, marker]`."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec


class Keywords(msgspec.Struct, frozen=True):
    """Keywords for the schema of a field, such as `x-kubernetes-list-type`.

    They replace those derived from the type. For keywords without their own marker.

    Attributes:
        keywords: of a structural schema.
    """

    keywords: Mapping[str, Any]


class ListSet(msgspec.Struct, frozen=True):
    """A list of unique items; several managers can each apply some of them."""


class ListMap:
    """A list of objects identified by key fields: `Annotated[list[Port], ListMap("name")]`.

    Several managers can each apply some of its items.

    Attributes:
        keys: JSON names of the fields, which must be required or have a default.
    """

    __match_args__ = ("keys",)

    def __init__(self, *keys: str) -> None:
        if not keys:
            raise ValueError("ListMap needs the names of the fields that identify an item")
        self.keys = keys

    def __repr__(self) -> str:
        return f"ListMap({', '.join(map(repr, self.keys))})"


class Atomic(msgspec.Struct, frozen=True):
    """A list or object that server-side apply treats as a whole, with one owner."""


class FreeForm(msgspec.Struct, frozen=True):
    """An object that keeps unknown fields."""


class EmbeddedObject(msgspec.Struct, frozen=True):
    """A complete object with its own apiVersion, kind and metadata."""


class Rule(msgspec.Struct, frozen=True):
    """A CEL rule of a field or, in `rules=`, of a type; `self` is the value.

    Attributes:
        rule: the expression, such as "self.min <= self.max"; one that reads `oldSelf` applies only
            to updates.
        message: the message if it does not hold, without line breaks.
        message_expression: CEL that returns the message.
        reason: "FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired" or
            "FieldValueDuplicate".
        field_path: JSON path of the invalid field, relative to the value, such as ".min".
        optional_old_self: also apply the rule without an old value; `oldSelf` is an optional.
    """

    rule: str
    message: str = ""
    message_expression: str = ""
    reason: str = ""
    field_path: str = ""
    optional_old_self: bool = False

    def schema(self) -> dict[str, Any]:
        """Return the rule as an item of `x-kubernetes-validations`."""
        fields = {
            "rule": self.rule,
            "message": self.message,
            "messageExpression": self.message_expression,
            "reason": self.reason,
            "fieldPath": self.field_path,
            "optionalOldSelf": self.optional_old_self,
        }
        return {name: value for name, value in fields.items() if value}


class BuiltIn(msgspec.Struct, frozen=True):
    """One of Kubernetes' own types, by name: `Annotated[dict[str, Any], BuiltIn("PodSpec")]`.

    Attributes:
        name: such as "PodTemplateSpec"; if several groups have one, "io.k8s.api.core.v1.Event".
    """

    name: str


#: A number with a unit, such as "500m" or "2Gi".
Quantity: TypeAlias = Annotated[int | str, BuiltIn("Quantity")]
#: A number, or a text such as "25%" or the name of a port.
IntOrString: TypeAlias = int | str
#: A time as a string, "2030-01-31T12:00:00Z"; `datetime.datetime` has the same schema.
Time: TypeAlias = Annotated[str, Keywords({"format": "date-time"})]
#: A duration in Go's format, "1h30m".
Duration: TypeAlias = Annotated[str, Keywords({"format": "duration", "x-go-duration": True})]
#: Any JSON object.
AnyObject: TypeAlias = Annotated[dict[str, Any], FreeForm()]

PodTemplateSpec: TypeAlias = Annotated[dict[str, Any], BuiltIn("PodTemplateSpec")]
PodSpec: TypeAlias = Annotated[dict[str, Any], BuiltIn("PodSpec")]
Container: TypeAlias = Annotated[dict[str, Any], BuiltIn("Container")]
EnvVar: TypeAlias = Annotated[dict[str, Any], BuiltIn("EnvVar")]
ResourceRequirements: TypeAlias = Annotated[dict[str, Any], BuiltIn("ResourceRequirements")]
Affinity: TypeAlias = Annotated[dict[str, Any], BuiltIn("Affinity")]
Toleration: TypeAlias = Annotated[dict[str, Any], BuiltIn("Toleration")]
Volume: TypeAlias = Annotated[dict[str, Any], BuiltIn("Volume")]
ServiceSpec: TypeAlias = Annotated[dict[str, Any], BuiltIn("ServiceSpec")]
LabelSelector: TypeAlias = Annotated[dict[str, Any], BuiltIn("LabelSelector")]
LocalObjectReference: TypeAlias = Annotated[dict[str, Any], BuiltIn("LocalObjectReference")]
SecretKeySelector: TypeAlias = Annotated[dict[str, Any], BuiltIn("SecretKeySelector")]
ConfigMapKeySelector: TypeAlias = Annotated[dict[str, Any], BuiltIn("ConfigMapKeySelector")]
#: An item of `status.conditions`; `Conditions` is the whole list, with its key.
Condition: TypeAlias = Annotated[
    dict[str, Any], BuiltIn("io.k8s.apimachinery.pkg.apis.meta.v1.Condition")
]
Conditions: TypeAlias = Annotated[list[Condition], ListMap("type")]
