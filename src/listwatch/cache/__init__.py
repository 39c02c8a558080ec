"""The list-watch core: reflector, queues, stores, informers. Knows nothing of HTTP."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.backoff import (
        Backoff,
    )
    from listwatch.cache.compression import (
        CompressionStatistics,
        ZstdCodec,
    )
    from listwatch.cache.controller import (
        Controller,
        ControllerConfig,
        ControllerStatistics,
    )
    from listwatch.cache.delta_fifo import (
        Compressor,
        CompressorError,
        DeltaFIFO,
    )
    from listwatch.cache.deltas import (
        Delta,
        Deltas,
        DeltaType,
        Item,
        KeyFunc,
        Queue,
        QueueStatistics,
        RequeueError,
    )
    from listwatch.cache.event_queue import (
        EventQueue,
    )
    from listwatch.cache.factory import (
        InformerFactory,
    )
    from listwatch.cache.failures import (
        Failure,
        LogFailures,
        OnError,
    )
    from listwatch.cache.handlers import (
        Added,
        Change,
        DecodingEventHandler,
        Deleted,
        FilteringEventHandler,
        HandlerFuncs,
        ResourceEventHandler,
        Updated,
    )
    from listwatch.cache.informer import (
        Informer,
        InformerStatistics,
    )
    from listwatch.cache.list_watch import (
        ListerWatcher,
        ListOptions,
        ObjectList,
        WatchEvent,
        WatchOptions,
        WatchStream,
    )
    from listwatch.cache.lister import (
        NAMESPACE_INDEX,
        OWNER_INDEX,
        Lister,
    )
    from listwatch.cache.mutation_detector import (
        CacheMutationError,
        MutationDetector,
    )
    from listwatch.cache.namespaces import (
        NamespacesInformer,
    )
    from listwatch.cache.ordered_fifo import (
        OrderedFIFO,
    )
    from listwatch.cache.reflector import (
        Reflector,
    )
    from listwatch.cache.shared_informer import (
        SharedInformer,
    )
    from listwatch.cache.store import (
        Indexer,
        IndexFunctionError,
        Store,
        StoreStatistics,
        UnknownIndexError,
    )
    from listwatch.errors import (
        QueueClosedError,
    )
    from listwatch.objects import (
        DeletedFinalStateUnknown,
        KeyFunctionError,
        Object,
        ObjectDecodeError,
        ObjectDecoder,
        deletion_handling_meta_namespace_key,
        meta_namespace_key,
        object_key,
        split_key,
    )
    from listwatch.selector import (
        FieldSelector,
        LabelSelector,
        SelectorError,
        parse_field_selector,
        parse_label_selector,
    )
    from listwatch.shard_range import (
        ShardRange,
    )

__all__ = [
    "NAMESPACE_INDEX",
    "OWNER_INDEX",
    "Added",
    "Backoff",
    "CacheMutationError",
    "Change",
    "CompressionStatistics",
    "Compressor",
    "CompressorError",
    "Controller",
    "ControllerConfig",
    "ControllerStatistics",
    "DecodingEventHandler",
    "Deleted",
    "DeletedFinalStateUnknown",
    "Delta",
    "DeltaFIFO",
    "DeltaType",
    "Deltas",
    "EventQueue",
    "Failure",
    "FieldSelector",
    "FilteringEventHandler",
    "HandlerFuncs",
    "IndexFunctionError",
    "Indexer",
    "Informer",
    "InformerFactory",
    "InformerStatistics",
    "Item",
    "KeyFunc",
    "KeyFunctionError",
    "LabelSelector",
    "ListOptions",
    "Lister",
    "ListerWatcher",
    "LogFailures",
    "MutationDetector",
    "NamespacesInformer",
    "Object",
    "ObjectDecodeError",
    "ObjectDecoder",
    "ObjectList",
    "OnError",
    "OrderedFIFO",
    "Queue",
    "QueueClosedError",
    "QueueStatistics",
    "Reflector",
    "RequeueError",
    "ResourceEventHandler",
    "SelectorError",
    "ShardRange",
    "SharedInformer",
    "Store",
    "StoreStatistics",
    "UnknownIndexError",
    "Updated",
    "WatchEvent",
    "WatchOptions",
    "WatchStream",
    "ZstdCodec",
    "deletion_handling_meta_namespace_key",
    "meta_namespace_key",
    "object_key",
    "parse_field_selector",
    "parse_label_selector",
    "split_key",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.backoff": "Backoff",
        "listwatch.cache.compression": "CompressionStatistics ZstdCodec",
        "listwatch.cache.controller": "ControllerConfig Controller ControllerStatistics",
        "listwatch.cache.delta_fifo": "Compressor CompressorError DeltaFIFO",
        "listwatch.cache.deltas": (
            "Delta DeltaType Deltas Item KeyFunc Queue QueueStatistics RequeueError"
        ),
        "listwatch.cache.event_queue": "EventQueue",
        "listwatch.cache.factory": "InformerFactory",
        "listwatch.cache.failures": "Failure LogFailures OnError",
        "listwatch.cache.handlers": (
            "Added Change DecodingEventHandler Deleted FilteringEventHandler "
            "HandlerFuncs ResourceEventHandler Updated"
        ),
        "listwatch.cache.informer": "Informer InformerStatistics",
        "listwatch.cache.list_watch": (
            "ListOptions ListerWatcher ObjectList WatchEvent WatchOptions WatchStream"
        ),
        "listwatch.cache.lister": "Lister NAMESPACE_INDEX OWNER_INDEX",
        "listwatch.cache.mutation_detector": "CacheMutationError MutationDetector",
        "listwatch.cache.namespaces": "NamespacesInformer",
        "listwatch.cache.ordered_fifo": "OrderedFIFO",
        "listwatch.cache.reflector": "Reflector",
        "listwatch.cache.shared_informer": "SharedInformer",
        "listwatch.cache.store": (
            "IndexFunctionError Indexer Store StoreStatistics UnknownIndexError"
        ),
        "listwatch.errors": "QueueClosedError",
        "listwatch.objects": (
            "DeletedFinalStateUnknown KeyFunctionError Object ObjectDecodeError "
            "ObjectDecoder deletion_handling_meta_namespace_key meta_namespace_key "
            "object_key split_key"
        ),
        "listwatch.selector": (
            "FieldSelector LabelSelector SelectorError parse_field_selector parse_label_selector"
        ),
        "listwatch.shard_range": "ShardRange",
    },
)
