"""Work queues: each key once, when it is due, with rate limits. Know nothing of Kubernetes."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.errors import (
        QueueClosedError,
    )
    from listwatch.workqueue.id_backoff import IdBackoff
    from listwatch.workqueue.metrics import (
        WorkQueueStatistics,
        prometheus_collector,
        prometheus_metrics,
    )
    from listwatch.workqueue.priority_queue import (
        LOW_PRIORITY,
        PriorityQueue,
    )
    from listwatch.workqueue.rate_limiters import (
        BucketRateLimiter,
        ItemExponentialFailureRateLimiter,
        ItemFastSlowRateLimiter,
        JitterRateLimiter,
        MaxOfRateLimiter,
        MaxWaitRateLimiter,
        RateLimiter,
        TokenBucket,
        default_item_based_rate_limiter,
        default_rate_limiter,
    )
    from listwatch.workqueue.retry_controller import (
        PopQueue,
        QueueRetryManager,
        Retry,
        RetryController,
        RetryControllerStatistics,
        RetryManager,
        retry_always,
        retry_never,
        retry_until,
    )
    from listwatch.workqueue.threads import (
        BlockingWorkQueue,
    )
    from listwatch.workqueue.work_queue import (
        FairOrder,
        Order,
        WorkQueue,
    )

__all__ = [
    "LOW_PRIORITY",
    "BlockingWorkQueue",
    "BucketRateLimiter",
    "FairOrder",
    "IdBackoff",
    "ItemExponentialFailureRateLimiter",
    "ItemFastSlowRateLimiter",
    "JitterRateLimiter",
    "MaxOfRateLimiter",
    "MaxWaitRateLimiter",
    "Order",
    "PopQueue",
    "PriorityQueue",
    "QueueClosedError",
    "QueueRetryManager",
    "RateLimiter",
    "Retry",
    "RetryController",
    "RetryControllerStatistics",
    "RetryManager",
    "TokenBucket",
    "WorkQueue",
    "WorkQueueStatistics",
    "default_item_based_rate_limiter",
    "default_rate_limiter",
    "prometheus_collector",
    "prometheus_metrics",
    "retry_always",
    "retry_never",
    "retry_until",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.errors": "QueueClosedError",
        "listwatch.workqueue.id_backoff": "IdBackoff",
        "listwatch.workqueue.metrics": (
            "WorkQueueStatistics prometheus_collector prometheus_metrics"
        ),
        "listwatch.workqueue.priority_queue": "LOW_PRIORITY PriorityQueue",
        "listwatch.workqueue.rate_limiters": (
            "BucketRateLimiter ItemExponentialFailureRateLimiter ItemFastSlowRateLimiter"
            " JitterRateLimiter MaxOfRateLimiter MaxWaitRateLimiter RateLimiter "
            "TokenBucket default_item_based_rate_limiter default_rate_limiter"
        ),
        "listwatch.workqueue.retry_controller": (
            "PopQueue QueueRetryManager Retry RetryController RetryControllerStatistics "
            "RetryManager retry_always retry_never retry_until"
        ),
        "listwatch.workqueue.threads": "BlockingWorkQueue",
        "listwatch.workqueue.work_queue": "FairOrder Order WorkQueue",
    },
)
