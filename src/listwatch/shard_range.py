"""A range of a resource's objects by the hashes of their uids: the server's `shardSelector`."""

from typing import Final, Self

import msgspec

_SPACE: Final = 1 << 64
_OFFSET: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3


def uid_hash(uid: str) -> int:
    """Return the 64-bit FNV-1a hash by which servers divide objects (KEP-5866)."""
    value = _OFFSET
    for byte in uid.encode():
        value = (value ^ byte) * _PRIME % _SPACE
    return value


class ShardRange(msgspec.Struct, frozen=True):
    """The objects whose uid hash is in a range.

    Attributes:
        start: the first hash.
        end: one past the last hash; at most 2**64.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= _SPACE:
            raise ValueError(
                "a shard's range is 0 <= start < end <= 2**64, "
                f"not {self.start:#x} to {self.end:#x}"
            )

    @classmethod
    def of(cls, index: int, count: int) -> Self:
        """Return one of several equal ranges that cover all objects.

        Args:
            index: its number, from 0.
            count: number of ranges.

        Raises:
            ValueError: there is no such range.
        """
        if not 0 <= index < count:
            raise ValueError(f"there is no shard {index} of {count}: the first one is 0")
        return cls(_SPACE * index // count, _SPACE * (index + 1) // count)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the range for a selector in the server's syntax.

        Raises:
            ValueError: it is not a range of uids.
        """
        name, _, rest = text.strip().partition("(")
        parts = [part.strip() for part in rest.removesuffix(")").split(",")]
        if (
            name != "shardRange"
            or not rest.endswith(")")
            or len(parts) != 3
            or parts[0] != "object.metadata.uid"
        ):
            raise ValueError(f"{text!r} is not like {cls(0, _SPACE).selector}")
        return cls(_bound(parts[1]), _bound(parts[2]))

    @property
    def selector(self) -> str:
        """The range in the server's syntax."""
        return f"shardRange(object.metadata.uid,'{self.start:#x}','{self.end:#x}')"

    def __str__(self) -> str:
        return f"uids {self.start:#x} to {self.end:#x}"

    def contains(self, uid: str) -> bool:
        """Return whether an object of this uid belongs to the range."""
        return self.start <= uid_hash(uid) < self.end


def _bound(text: str) -> int:
    if len(text) < 5 or not text.startswith("'0x") or not text.endswith("'"):
        raise ValueError(f"{text} is not a bound of a shard's range like '0x8000000000000000'")
    return int(text[3:-1], 16)
