import pytest

from listwatch.clock import FakeClock
from listwatch.workqueue.rate_limiters import ItemExponentialFailureRateLimiter
from listwatch.workqueue.work_queue import WorkQueue


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=0.0)


@pytest.fixture
def queue(clock: FakeClock) -> WorkQueue[str]:
    return WorkQueue(
        name="test", clock=clock, rate_limiter=ItemExponentialFailureRateLimiter(1, 1000)
    )
