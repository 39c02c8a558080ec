"""TCP transports of a proxy: they take less time for each message than asyncio's.

asyncio makes a handle for each readable socket and calls through five of its own functions. Here,
the event loop waits for one selector, which has the sockets of all connections.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Final, Protocol

#: Events that a poller waits for; epoll's numbers.
READ: Final = 1
WRITE: Final = 4
# Sockets handled before the event loop goes on to its other work.
_BATCH: Final = 256
# Bytes received at once.
_CHUNK: Final = 1 << 18
# Unsent bytes above which the sender is slowed down, and below which it continues; as in asyncio.
_HIGH: Final = 1 << 16
_LOW: Final = 1 << 14


class Receiver(Protocol):
    """What a transport calls; `asyncio.Protocol` describes each method."""

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        ...

    def eof_received(self) -> object:
        """Handle the end of what the peer sends; the transport stays open."""
        ...

    def pause_writing(self) -> None:
        """Write no more for now."""
        ...

    def resume_writing(self) -> None:
        """Continue to write."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        ...


class Poller:
    """Waits for the sockets of transports. For one event loop.

    Uses one file while there are transports, none otherwise.

    Args:
        has_epoll: whether this system has epoll; without it, the event loop waits for each socket.
    """

    def __init__(self, *, has_epoll: bool = hasattr(select, "epoll")) -> None:
        self._has_epoll = has_epoll
        self._loop: asyncio.AbstractEventLoop | None = None
        self._epoll: select.epoll | None = None
        self._ready: dict[int, Callable[[int], None]] = {}
        self._count = 0

    @property
    def is_idle(self) -> bool:
        """Whether it has no file, because there are no transports."""
        return self._epoll is None and not self._count

    def enter(self) -> None:
        """Prepare to wait for another transport.

        Raises:
            OSError: no more files can be opened.
        """
        if self._count == 0:
            self._loop = asyncio.get_running_loop()
            if self._has_epoll:
                self._epoll = select.epoll()
                self._loop.add_reader(self._epoll, self.poll)
        self._count += 1

    def leave(self) -> None:
        """Wait for one transport less."""
        self._count -= 1
        if self._count == 0 and self._epoll is not None:
            assert self._loop is not None  # noqa: S101 - a transport has entered
            self._loop.remove_reader(self._epoll)
            self._epoll.close()
            self._epoll = None

    def watch(self, fd: int, ready: Callable[[int], None], before: int, events: int) -> None:
        """Wait for other events of a file than before.

        Args:
            fd: its number.
            ready: called with what it is ready for, perhaps more than was asked for.
            before: what is waited for so far.
            events: `READ`, `WRITE`, both, or 0 for neither.
        """
        if self._epoll is None:
            self._watch_each(fd, ready, before, events)
        elif not events:
            del self._ready[fd]
            self._epoll.unregister(fd)
        elif before:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._ready[fd] = ready

    def _watch_each(self, fd: int, ready: Callable[[int], None], before: int, events: int) -> None:
        assert self._loop is not None  # noqa: S101 - a transport has entered
        changed = before ^ events
        if changed & READ and events & READ:
            self._loop.add_reader(fd, ready, READ)
        elif changed & READ:
            self._loop.remove_reader(fd)
        if changed & WRITE and events & WRITE:
            self._loop.add_writer(fd, ready, WRITE)
        elif changed & WRITE:
            self._loop.remove_writer(fd)

    def poll(self) -> None:
        """Handle the sockets that are ready now; returns without waiting."""
        assert self._epoll is not None  # noqa: S101 - it is readable
        of = self._ready
        for fd, events in self._epoll.poll(0, _BATCH):
            if (ready := of.get(fd)) is not None:  # otherwise, another one has just closed it
                ready(events)


class SocketTransport:
    """A connected TCP socket, with the methods of `asyncio.Transport` that a proxy needs.

    The receiver's methods are called by the event loop, `pause_writing` also by `write`.

    Args:
        sock: connected, without blocking; closed at the end.
        receiver: is told what happens.
        poller: waits for the socket.

    Raises:
        OSError: no more files can be opened; the socket is still the caller's.
    """

    __slots__ = (
        "_buffer",
        "_events",
        "_handle",
        "_has_eof",
        "_is_closing",
        "_is_ending",
        "_is_lost",
        "_is_slow",
        "_loop",
        "_peers_buffer",
        "_peers_send",
        "_poller",
        "_receive",
        "_receiver",
        "_send",
        "received",
        "sock",
    )

    def __init__(self, sock: socket.socket, receiver: Receiver, poller: Poller) -> None:
        poller.enter()
        #: The socket.
        self.sock = sock
        #: Number of received bytes.
        self.received = 0
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._peers_send: Callable[[bytes], int] | None = None
        self._peers_buffer = self._buffer = bytearray()
        self._handle: Callable[[bytes], None] = receiver.data_received
        self._poller = poller
        self._receive = sock.recv
        self._send = sock.send
        self._events = 0
        self._has_eof = self._is_ending = self._is_closing = self._is_lost = self._is_slow = False

    def forward_to(self, peer: "SocketTransport") -> None:
        """Write received bytes to a peer, instead of calling the receiver's `data_received`."""
        self._handle = peer.write
        self._peers_send = peer._send  # noqa: SLF001 - of the same class
        self._peers_buffer = peer._buffer  # noqa: SLF001 - of the same class

    def is_reading(self) -> bool:
        """Return whether it receives."""
        return bool(self._events & READ)

    def is_closing(self) -> bool:
        """Return whether it is closed, or will be once everything is sent."""
        return self._is_closing

    def pause_reading(self) -> None:
        """Receive nothing until `resume_reading`. Calling it again is harmless."""
        self._watch(self._events & ~READ)

    def resume_reading(self) -> None:
        """Receive. No effect after the end of what the peer sends. Calling it again is harmless."""
        if not self._is_closing and not self._has_eof:
            self._watch(self._events | READ)

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until the peer is ready. No effect once closed."""
        if self._is_closing:
            return
        if not self._buffer:
            try:
                sent = self._send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            self._buffer += memoryview(data)[sent:]
            self._watch(self._events | WRITE)
        else:
            self._buffer += data
        if len(self._buffer) > _HIGH and not self._is_slow:
            self._is_slow = True
            self._receiver.pause_writing()

    def write_eof(self) -> None:
        """End this direction once everything is sent. Calling it again is harmless."""
        if self._is_closing or self._is_ending:
            return
        self._is_ending = True
        if not self._buffer:
            self._shut_down()

    def close(self) -> None:
        """Receive nothing more, send what is kept, and close. Calling it again is harmless."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._buffer:
            self._watch(WRITE)
        else:
            self._lose(None)

    def abort(self) -> None:
        """Close at once, and drop what is kept. Calling it again is harmless."""
        self._lose(None)

    def ready(self, events: int) -> None:
        """Receive or send; called by the poller.

        Args:
            events: what the socket is ready for.
        """
        # An error or the end of the connection, which epoll always reports, is found by either way.
        if events & ~WRITE and self._events & READ:
            try:
                data = self._receive(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lose(error)
                return
            if data:
                self.received += len(data)
                # The usual case of `write`, without its call and its questions.
                if (send := self._peers_send) is not None and not self._peers_buffer:
                    try:
                        sent = send(data)
                    except OSError:
                        sent = 0  # `write` finds out why
                    if sent == len(data):
                        return
                    data = data[sent:]
                self._handle(data)
            else:
                self._has_eof = True
                self._watch(self._events & ~READ)
                self._receiver.eof_received()
        # Receiving may have changed what is waited for.
        if events & ~READ and self._events & WRITE:
            self._flush()

    def _flush(self) -> None:
        buffer = self._buffer
        try:
            sent = self._send(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        del buffer[:sent]
        if not buffer:
            self._watch(self._events & ~WRITE)
            if self._is_closing:
                self._lose(None)
                return
            if self._is_ending and not self._shut_down():
                return
        if self._is_slow and len(buffer) <= _LOW:
            self._is_slow = False
            self._receiver.resume_writing()

    def _shut_down(self) -> bool:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:  # the peer has gone
            self._lose(error)
            return False
        return True

    def _watch(self, events: int) -> None:
        before = self._events
        if events != before and not self._is_lost:
            self._poller.watch(self.sock.fileno(), self.ready, before, events)
            self._events = events

    def _lose(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._watch(0)
        self._is_lost = self._is_closing = True
        self._buffer.clear()
        # Later: the receiver may be within a call of its own.
        self._loop.call_soon(self._end, error)

    def _end(self, error: OSError | None) -> None:
        self._poller.leave()
        self.sock.close()
        self._receiver.connection_lost(error)
