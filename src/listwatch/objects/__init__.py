"""Kubernetes objects: their bytes, metadata and keys.

Not public; `listwatch.cache` and `listwatch` export what users need.
"""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.objects.keys import (  # noqa: I001 - one import re-exports many names
        DeletedFinalStateUnknown as DeletedFinalStateUnknown,
        KeyFunctionError as KeyFunctionError,
        ObjectKey as ObjectKey,
        deletion_handling_meta_namespace_key as deletion_handling_meta_namespace_key,
        meta_namespace_key as meta_namespace_key,
        object_key as object_key,
        split_key as split_key,
    )
    from listwatch.objects.metadata import (
        ObjectMeta as ObjectMeta,
        OwnerReference as OwnerReference,
        select as select,
    )
    from listwatch.objects.object import (
        Codec as Codec,
        Object as Object,
        ObjectDecodeError as ObjectDecodeError,
        ObjectDecoder as ObjectDecoder,
        decode_object as decode_object,
    )
    from listwatch.objects.read_only import (
        ReadOnlyDict as ReadOnlyDict,
        ReadOnlyList as ReadOnlyList,
    )

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.objects.keys": (
            "DeletedFinalStateUnknown KeyFunctionError ObjectKey "
            "deletion_handling_meta_namespace_key meta_namespace_key object_key split_key"
        ),
        "listwatch.objects.metadata": "ObjectMeta OwnerReference select",
        "listwatch.objects.object": "Codec Object ObjectDecodeError ObjectDecoder decode_object",
        "listwatch.objects.read_only": "ReadOnlyDict ReadOnlyList",
    },
)
