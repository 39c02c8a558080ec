"""The cells of the tables of built-in kinds, by resource and column."""

from collections.abc import Callable, Mapping
from typing import Any

Cell = Callable[[Mapping[str, Any], float], Any]

CELLS: Mapping[str, Mapping[str, Cell]] = {
    "v1/configmaps": {
        "Data": lambda obj, _: len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
    },
}
