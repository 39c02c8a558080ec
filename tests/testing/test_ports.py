import socket
from pathlib import Path

import pytest

from listwatch.testing import ports
from listwatch.testing.ports import free_port

KINDS = [socket.SOCK_STREAM, socket.SOCK_DGRAM]


@pytest.fixture
def system_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the one that tells the system's ports."""
    path = tmp_path / "ip_local_port_range"
    monkeypatch.setattr(ports, "_SYSTEM_PORTS", path)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("32768\t60999\n", range(10_000, 32_768)),
        ("1024\t60999\n", range(61_000, 65_536)),
        ("20000\t22000\n", range(22_001, 65_536)),
    ],
)
def test_a_port_is_none_that_the_system_takes_by_itself(
    system_range: Path, told: str, expected: range, kind: socket.SocketKind
) -> None:
    system_range.write_text(told)
    for _ in range(20):
        assert free_port(kind) in expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("told", [None, "", "everything", "1024 65535"])
def test_where_no_port_is_left_or_nothing_is_told_the_system_chooses(
    system_range: Path, told: str | None, kind: socket.SocketKind
) -> None:
    if told is not None:
        system_range.write_text(told)
    assert 0 < free_port(kind) <= 65_535


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", ""])
def test_a_port_that_is_taken_at_any_address_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    taken = free_port()
    monkeypatch.setattr(ports, "_ports_by_name_alone", lambda: range(taken, taken + 1))
    with socket.create_server((host, taken)):
        assert free_port() != taken
