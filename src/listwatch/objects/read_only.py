"""Decoded JSON that can't be changed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class ReadOnlyDict(Mapping[str, Any]):
    """A decoded JSON object that can't be changed; `dict()` or `to_dict()` return a copy."""

    __slots__ = ("_value",)

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def __getitem__(self, key: str) -> Any:
        return read_only(self._value[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        return self._value == (other._value if isinstance(other, ReadOnlyDict) else other)

    __hash__ = None  # type: ignore[assignment]  # unhashable, like dict

    def __repr__(self) -> str:
        return repr(self._value)

    def __setitem__(self, key: str, value: object) -> None:
        raise TypeError(_REFUSAL)

    def __delitem__(self, key: str) -> None:
        raise TypeError(_REFUSAL)


class ReadOnlyList(Sequence[Any]):
    """A decoded JSON array that can't be changed."""

    __slots__ = ("_value",)

    def __init__(self, value: list[Any]) -> None:
        self._value = value

    def __getitem__(self, index: Any) -> Any:
        return read_only(self._value[index])

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        return self._value == (other._value if isinstance(other, ReadOnlyList) else other)

    __hash__ = None  # type: ignore[assignment]  # unhashable, like list

    def __repr__(self) -> str:
        return repr(self._value)

    def __setitem__(self, index: int, value: object) -> None:
        raise TypeError(_REFUSAL)

    def __delitem__(self, index: int) -> None:
        raise TypeError(_REFUSAL)


_REFUSAL = "a cached object can't be changed; to_dict() gives a copy that can"


def read_only(value: Any) -> Any:
    """Return a decoded value in a form that can't be changed."""
    if isinstance(value, dict):
        return ReadOnlyDict(value)
    return ReadOnlyList(value) if isinstance(value, list) else value
