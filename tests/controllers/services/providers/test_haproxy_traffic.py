"""Traffic figures continue across reloads, although HAProxy's counters restart."""

from listwatch.controllers.services.figures import Traffic
from listwatch.controllers.services.providers.haproxy_traffic import HAProxyTraffic

HEAD = "# pxname,svname,scur,bin,bout,dcon,stot,econ,status,"


def answer(open_: int, accepted: int, errors: int = 0, down: int = 0) -> str:
    rows = [
        f"web,FRONTEND,{open_},{accepted * 10},{accepted * 20},3,{accepted},,OPEN,",
        *(f"web,s{number},0,0,0,,0,,DOWN 1/2," for number in range(down)),
        "web,s8,0,0,0,,0,,UP,",
        "web,s9,0,0,0,,0,,MAINT,",
        f"web,BACKEND,0,0,0,,{accepted},{errors},UP,",
    ]
    return "\n".join([HEAD, *rows, ""])


def test_totals_go_on_over_a_reload() -> None:
    traffic = HAProxyTraffic()
    assert traffic.total("web") == Traffic()
    traffic.read(answer(2, 100, errors=4))
    assert traffic.total("web") == Traffic(2, 100, 3, 4, 1000, 2000)
    traffic.read(answer(1, 5))
    assert traffic.total("web") == Traffic(1, 105, 6, 4, 1050, 2100)
    traffic.read(answer(0, 7))
    assert traffic.total("web").accepted == 107
    traffic.read(HEAD + "\nother,FRONTEND,0,0,0,0,0,,OPEN,\n")
    assert traffic.total("web") == Traffic()


def test_backends_that_are_down_are_counted_and_idle_places_are_not() -> None:
    traffic = HAProxyTraffic()
    traffic.read(answer(0, 0, down=2))
    assert (traffic.failed("web"), traffic.failed("other")) == (2, 0)


def test_an_empty_or_odd_answer_changes_nothing() -> None:
    traffic = HAProxyTraffic()
    traffic.read(answer(2, 100))
    for text in ("", "\n", "# pxname,svname\n"):
        traffic.read(text)
    assert traffic.total("web").accepted == 100
