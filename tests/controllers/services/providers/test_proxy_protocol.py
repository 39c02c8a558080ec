from listwatch.controllers.services.providers.proxy_protocol import ProxyProtocol, header

V4 = (("192.0.2.1", 4711), ("198.51.100.7", 80))
V6 = (("2001:db8::1", 4711), ("2001:db8::2", 80))


def test_none_sends_nothing() -> None:
    assert header(ProxyProtocol.NONE, *V4) == b""


def test_version_1_is_a_line() -> None:
    assert header(ProxyProtocol.V1, *V4) == b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 80\r\n"
    assert header(ProxyProtocol.V1, *V6) == b"PROXY TCP6 2001:db8::1 2001:db8::2 4711 80\r\n"


def test_version_2_is_the_specifications_bytes() -> None:
    signature = bytes.fromhex("0d0a0d0a000d0a515549540a")
    assert header(ProxyProtocol.V2, *V4) == signature + bytes.fromhex(
        "2111000c c0000201 c6336407 1267 0050"
    )
    head = header(ProxyProtocol.V2, *V6)
    assert head[:16] == signature + bytes.fromhex("21210024")
    assert len(head) == 16 + 36
