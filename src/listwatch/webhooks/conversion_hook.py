"""Converts the objects of a definition for the API server."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from listwatch.clock import in_thread
from listwatch.resources.conversion import Conversions
from listwatch.webhooks.dispatch import Answer, ReviewError

#: Seconds that an API server waits for a conversion.
_SECONDS: Final = 30.0
#: A review has one object in practice, and may have as many as a list: etcd holds 1.5 MiB of each.
_REVIEW_BYTES: Final = 64 * 1024 * 1024


class ConversionHook:
    """Answers the ConversionReviews of one definition; a `ReviewHook`.

    The conversions run in threads, so that a review of many objects does not hold the event loop.

    Args:
        conversions: complete ones.
        concurrency: maximum reviews at once.
    """

    review = ("ConversionReview", "apiextensions.k8s.io/v1")
    limit = _REVIEW_BYTES
    timeout = _SECONDS

    def __init__(self, conversions: Conversions, *, concurrency: int = 4) -> None:
        self.concurrency = concurrency
        self.name = f"convert.{conversions.name}"
        self.path = f"/convert/{conversions.name}"
        self._conversions = conversions
        self._executor: ThreadPoolExecutor | None = None

    async def answer(self, request: dict[str, Any]) -> Answer:
        """Convert the objects of a review.

        Raises:
            ReviewError: the request names no version, or has no objects.
        """
        if not isinstance(request.get("desiredAPIVersion"), str):
            raise ReviewError("the review's request has no desiredAPIVersion")
        objects = request.get("objects")
        if not isinstance(objects, list) or not all(isinstance(one, dict) for one in objects):
            raise ReviewError("the review's request has no list of objects")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.concurrency, thread_name_prefix=self.name)
        response = await in_thread(self._executor, lambda: self._conversions.review(request))
        return Answer(response, denied=response["result"]["status"] != "Success")

    def close(self) -> None:
        """Start no more conversions."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
