"""The metadata of objects, as a field of resource types."""

from typing import Any

import msgspec


class ObjectMeta(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The metadata of an object, for the field `metadata` of a type.

    Servers set uid, resource_version, generation and the two times. Metadata without a field here
    stays unchanged on the server, because only differences are written.
    """

    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[dict[str, Any]] = []
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
