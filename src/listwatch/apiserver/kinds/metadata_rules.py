"""The rules for labels, which metadata, pod templates and selectors share."""

from collections.abc import Mapping

from listwatch.schema.causes import Cause, invalid_value
from listwatch.selector import label_value_problems, qualified_name_problems


def validate_labels(labels: Mapping[str, str] | None, path: str) -> list[Cause]:
    """Return the rules that labels break."""
    causes = []
    for key, value in (labels or {}).items():
        causes += [invalid_value(path, key, why) for why in qualified_name_problems(key)]
        causes += [invalid_value(path, value, why) for why in label_value_problems(value)]
    return causes
