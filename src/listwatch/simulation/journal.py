"""What happened in a world, and a digest of all requests and answers."""

import hashlib
from enum import StrEnum

import msgspec


class Lane(StrEnum):
    """Whose entry it is, besides those of processes, which have their names.

    Attributes:
        USER: the scenario.
        SERVER: the API server and its controllers.
        FAULT: a fault that struck.
        ORACLE: an objection.
    """

    USER = "user"
    SERVER = "server"
    FAULT = "fault"
    ORACLE = "oracle"


class Entry(msgspec.Struct, frozen=True):
    """One thing that happened.

    Attributes:
        time: virtual seconds since the start.
        lane: a process, or one of `Lane`.
        words: what happened.
        revision: the server's at that time.
        seen: the revision of what a process read or was told; 0 for none.
        point: the number of the point; 0 for none.
    """

    time: float
    lane: str
    words: str
    revision: int
    seen: int = 0
    point: int = 0


class Journal:
    """The entries of one world.

    Args:
        keeps: keep the entries; otherwise only the digest.
    """

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.entries: list[Entry] = []
        self._hash = hashlib.blake2b(digest_size=16)
        #: The digests after each request, to find the first that differs; only if it keeps entries.
        self.marks: list[tuple[str, str]] = []

    def add(self, entry: Entry) -> None:
        """Keep an entry."""
        if self.keeps:
            self.entries.append(entry)

    def digest_of(self, words: str, *parts: bytes) -> None:
        """Add a request, an answer or an event to the digest."""
        self._hash.update(words.encode())
        for part in parts:
            self._hash.update(b"\0%d\0" % len(part))
            self._hash.update(part)
        if self.keeps:
            self.marks.append((words, self.digest))

    @property
    def digest(self) -> str:
        """The digest of everything so far."""
        return self._hash.hexdigest()
