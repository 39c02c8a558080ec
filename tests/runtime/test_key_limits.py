from listwatch.runtime.key_limits import KeyLimits


def test_an_emptied_bucket_fills_with_time() -> None:
    buckets: KeyLimits[str] = KeyLimits(2, 10)
    assert [buckets.take("a", 0), buckets.take("a", 0), buckets.take("a", 4)] == [0, 0, 6]
    assert buckets.take("b", 4) == 0
    assert buckets.take("a", 10) == 0
