"""The protobuf form of the API, for the kinds that kubectl sends in no other."""

from typing import Any

from listwatch.apiserver import refusal
from listwatch.apiserver.resources import Resource


def can_write(resource: Resource) -> bool:
    """Tell whether answers of this resource can be written in protobuf."""
    return False


def decode_object(data: bytes, resource: Resource) -> dict[str, Any]:
    raise refusal.unsupported_media_type("protobuf")


def decode_delete_options(data: bytes) -> dict[str, Any]:
    raise refusal.unsupported_media_type("protobuf")


def encode_json(body: bytes) -> bytes:
    raise refusal.not_acceptable("protobuf")
