"""The samples of metric families, for comparisons."""

from collections.abc import Iterable

from prometheus_client import Metric


def samples_of(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """Return the value of each sample by its name and the values of its labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
