"""Changes objects while they are decoded, before anything is stored."""

from asyncio import CancelledError
from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from listwatch.cache.list_watch import Decoder
from listwatch.objects import Object, ObjectDecodeError

#: Returns the object to store: same name and namespace, usually smaller.
Transform: TypeAlias = Callable[[Object], Object]


class TransformError(ObjectDecodeError):
    """A transform raised, or returned an object with another key; this object is left out."""


class TransformingDecoder:
    """A `Decoder` that decodes objects and transforms them.

    The result of a transform is decoded again, so that `fields=` and compression apply to it. It is
    marked partial: an update must not send it. Thread-safe if decoder and transform are.

    Args:
        decoder: creates an object from its bytes.
        transform: changes the object. An exception is reported and drops only this object.
    """

    def __init__(self, decoder: Decoder, transform: Transform) -> None:
        self._decoder = decoder
        self._transform = transform

    def __call__(self, raw: bytes, kind: str = "", api_version: str = "") -> Object:
        """Decode and transform one object.

        Raises:
            ObjectDecodeError: the bytes are not an object.
            TransformError: the transform failed.
        """
        obj = self._decoder(raw, kind, api_version)
        try:
            changed = self._transform(obj)
            if changed is obj:
                return obj
            if not isinstance(changed, Object):
                raise TypeError(f"it returned a {type(changed).__name__}, not an Object")  # noqa: TRY301 - handled like its exceptions
            if changed.key != obj.key:
                raise ValueError(f"it returned another object, {changed.key}")  # noqa: TRY301 - handled like its exceptions
            if changed.resource_version != obj.resource_version or changed.uid != obj.uid:
                raise ValueError("it changed the uid or the resource version")  # noqa: TRY301 - as above
            changed = self._decoder(changed.json(), kind, api_version)
        except (Exception, CancelledError) as error:
            raise TransformError(
                f"transform failed for {obj.key}: {type(error).__name__}: {error}", key=obj.key
            ) from error
        return replace(changed, partial=True)
