"""The health of servers, handed over to HAProxy's next process."""

from listwatch.controllers.services.providers.balancing import Backend
from listwatch.controllers.services.providers.haproxy_config import Frontend
from listwatch.controllers.services.providers.haproxy_process import _sessions_with
from listwatch.controllers.services.providers.haproxy_state import kept_states
from listwatch.controllers.services.providers.listening import Rules

HEAD = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_port"


def frontend(*backends: Backend) -> Frontend:
    made = Frontend(name="web-80", addresses=["::1"], port=80, rules=Rules(), affinity_seconds=0)
    made.assign(backends, 2)
    return made


def test_only_places_with_the_same_backend_keep_their_health() -> None:
    a, b, c = (Backend(f"192.0.2.{number}", 80) for number in (1, 2, 3))
    current = frontend(a, b, c)
    current.slots[2].draining = True
    rows = [
        "3 web-80 1 s0 192.0.2.1 0 4 80",
        "3 web-80 2 s1 192.0.2.9 0 0 80",  # another backend
        "3 web-80 3 s2 192.0.2.3 0 0 80",  # drained
        "3 web-80 4 s3 127.0.0.1 0 5 1",  # empty
        "5 gone-80 1 s0 192.0.2.1 0 0 80",
        "5 odd",
    ]
    kept = kept_states("\n".join(["1", HEAD, *rows, ""]), [current])
    assert kept.splitlines() == ["1", HEAD, "3 web-80 1 s0 192.0.2.1 0 0 80"]
    disabled = "3 web-80 1 s0 192.0.2.1 0 1 80"
    assert kept_states(f"1\n{HEAD}\n{disabled}", [current]).splitlines() == ["1", HEAD]


def test_an_answer_that_is_none_keeps_nothing() -> None:
    for text in ("", "\n", "no such command\n", "1\n"):
        assert kept_states(text, [frontend()]) == ""


def test_sessions_are_found_by_their_server() -> None:
    text = (
        "0x1: proto=tcpv4 src=127.0.0.1:1 fe=web-80 be=web-80 srv=s0 ts=00 age=2s\n"
        "0x2: proto=tcpv4 src=127.0.0.1:2 fe=web-80 be=web-80 srv=s1 ts=00 age=2s\n"
        "0x3: proto=sockpair src=unix:2 fe=GLOBAL be=<NONE> srv=<none> ts=00\n\n"
    )
    assert list(_sessions_with(text, {"web-80/s1", "other/s0"}.__contains__)) == ["0x2"]
    assert list(_sessions_with(text, lambda _server: True)) == ["0x1", "0x2"]
