import errno
import os
import socket

import pytest

from listwatch.controllers.services.provider import ProviderError
from listwatch.controllers.services.providers.listening import (
    AddressInUseError,
    Rules,
    _explained,
    bind,
    parse_source_ranges,
)


def test_a_socket_listens_where_it_shall_and_nobody_else_can() -> None:
    with bind(socket.SOCK_STREAM, "127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f"listens on 127.0.0.1 port {port}"):
            bind(socket.SOCK_STREAM, "127.0.0.1", port)
    with bind(socket.SOCK_DGRAM, "::1", 0) as sock:
        assert sock.family is socket.AF_INET6


def test_an_address_that_is_not_the_machines_is_told() -> None:
    with pytest.raises(ProviderError, match=r"192\.0\.2\.1 is not an address of this machine"):
        bind(socket.SOCK_STREAM, "192.0.2.1", 0)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "run as root, or lower net.ipv4.ip_unprivileged_port_start"),
        (errno.EMFILE, "raise the limit, ulimit -n"),
        (errno.ENOBUFS, os.strerror(errno.ENOBUFS)),
    ],
)
def test_other_errors_name_the_place_and_the_remedy(number: int, words: str) -> None:
    error = _explained(OSError(number, os.strerror(number)), "127.0.0.1", 80)
    assert "127.0.0.1 port 80" in str(error)
    assert words in str(error)


def test_a_socket_that_can_not_be_made_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(ProviderError, match=r"can't listen on 127\.0\.0\.1 port 80: too many open"):
        bind(socket.SOCK_STREAM, "127.0.0.1", 80)


def test_source_ranges_allow_whom_they_name() -> None:
    assert Rules().allow("192.0.2.1")
    rules = Rules(parse_source_ranges([" 192.0.2.0/24", "2001:db8::/32", "198.51.100.7/24"]))
    assert rules.allow("192.0.2.255")
    assert rules.allow("198.51.100.200")
    assert rules.allow("2001:db8::1")
    assert not rules.allow("203.0.113.1")
    assert not rules.allow("::1")
