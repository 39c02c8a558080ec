"""One end of a connection before the other end exists."""

from typing import Any, cast

from listwatch.controllers.services.providers.tcp import _Connection, _End


class Wire:
    """A transport that records calls."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.peer: Wire | None = None
        self.received = 0

    def forward_to(self, peer: "Wire") -> None:
        self.peer = peer

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def write_eof(self) -> None:
        self.done.append("eof")

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")


class Ending:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def make() -> tuple[_End, Wire, Ending]:
    connection, wire = Ending(), Wire()
    end = _End(cast("_Connection", connection))
    end.connection_made(cast("Any", wire))
    return end, wire, connection


def test_what_comes_before_the_other_end_is_handed_on_in_order_behind_the_header() -> None:
    end, own, _ = make()
    other, wire, _ = make()
    end.data_received(b"a")
    end.data_received(b"b")
    end.join(other, b"header ")
    assert wire.done == [b"header ab"]
    assert own.peer is wire, "what comes later is written to it by the transport"


def test_an_end_before_the_other_end_is_there_is_handed_on_too() -> None:
    end, _, connection = make()
    other, wire, _ = make()
    end.data_received(b"a")
    end.eof_received()
    end.join(other)
    assert wire.done == [b"a", "eof"]
    assert not connection.is_closed


def test_the_connection_ends_when_both_ends_have() -> None:
    end, _, connection = make()
    other, wire, others = make()
    end.join(other)
    other.join(end)
    end.eof_received()
    assert (wire.done, connection.is_closed) == (["eof"], False)
    other.eof_received()
    assert others.is_closed


def test_nothing_is_written_when_nothing_came() -> None:
    end, _, _ = make()
    other, wire, _ = make()
    end.join(other)
    end.pause_writing()
    end.resume_writing()
    assert wire.done == ["pause", "resume"]
