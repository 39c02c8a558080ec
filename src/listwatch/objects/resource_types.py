"""Types that are resources: decorated ones, and the models of other clients."""

import dataclasses
import re
from typing import Any, Final

import msgspec

#: The attribute of a type with its resource; its attribute `resource` has the resource's names.
ATTRIBUTE: Final = "__custom_resource__"

# Such as V1Deployment, V1beta1IPAddress or CoreV1Event.
_MODEL: Final = re.compile(r"([A-Z][a-z]+)?(V\d+(?:(?:alpha|beta)\d+)?)([A-Z]\w*)")


def is_resource_type(cls: type) -> bool:
    """Return whether a type is decorated; its subclasses are not."""
    return ATTRIBUTE in cls.__dict__


def is_model(cls: type) -> bool:
    """Return whether objects of a type have typed fields and can be encoded as JSON."""
    return (
        issubclass(cls, msgspec.Struct)
        or dataclasses.is_dataclass(cls)
        or hasattr(cls, "__attrs_attrs__")
        or hasattr(cls, "model_dump")
    )


def described(cls: type) -> Any:
    """Return what the decorator has attached to a type.

    Raises:
        TypeError: the type is not decorated.
    """
    known = cls.__dict__.get(ATTRIBUTE)
    if known is None:
        raise TypeError(
            f"{cls.__name__} is no resource: decorate it with listwatch.resources.resource(…), or "
            'name a resource, as "pods"'
        )
    return known


def name_of_resource(resource: str | type[Any]) -> str:
    """Return the name by which a server's resource is found.

    Args:
        resource: its name; or a type decorated by `listwatch.resources.resource`, whose version is
            then part of the name, as in "websites.v1.example.com"; or a model of Kubernetes' own
            kinds, `lightkube.resources.apps_v1.Deployment` or `kubernetes.client.V1Deployment`.

    Raises:
        TypeError: the type is none of these.
    """
    if isinstance(resource, str):
        return resource
    if not is_resource_type(resource) and (name := _name_of_model(resource)):
        return name
    full_name: str = described(resource).resource.full_name
    return full_name


def plural_of(kind: str) -> str:
    """Return the usual plural of a kind, in lower case."""
    word = kind.lower()
    if word == "endpoints":
        return word
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in {"", *"aeiou"}:
        return f"{word[:-1]}ies"
    return f"{word}s"


def _name_of_model(cls: type) -> str:
    """Return the name of a model's resource; empty if the class does not tell."""
    info = getattr(cls, "_api_info", None)
    if info is not None:  # lightkube's
        return f"{info.plural}.{info.resource.version}.{info.resource.group}"
    if cls.__module__.partition(".")[0] != "kubernetes" or not hasattr(cls, "model_dump"):
        return ""
    match = _MODEL.fullmatch(cls.__name__)
    if match is None:
        return ""
    from listwatch.schema.facts import facts  # noqa: PLC0415 - large, and seldom needed

    prefix, version, kind = (match[1] or "").lower(), match[2].lower(), match[3]
    groups = [
        group
        for group, known_version, known in facts().kinds()
        if (known_version, known) == (version, kind)
        and (not prefix or (group.partition(".")[0] or "core") == prefix)
    ]
    return f"{plural_of(kind)}.{version}.{groups[0]}" if len(groups) == 1 else ""
