from typing import Any

import pytest

from listwatch.errors import ConfigError
from listwatch.webhooks.options import Place, WebhookOptions, place_of
from listwatch.webhooks.registration import Address

LOCAL = "http://127.0.0.1:8080"
REMOTE = "https://cluster.example.com"


def place(server: str, **options: Any) -> Place:
    return place_of(WebhookOptions(**options), "sites", "web", server)


@pytest.fixture(autouse=True)
def no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.parametrize("server", [LOCAL, "https://[::1]:6443", "https://localhost:1"])
def test_a_server_on_this_machine_calls_a_free_port_of_loopback(server: str) -> None:
    found = place(server)
    assert (found.host, found.port, found.is_local) == ("127.0.0.1", 0, True)
    assert found.names == ("127.0.0.1", "localhost")
    assert found.excluded == ()


def test_a_test_that_runs_in_a_pod_is_called_on_loopback_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert place(LOCAL).is_local


def test_in_a_pod_the_service_has_the_manager_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    found = place(REMOTE)
    assert found.address == Address(namespace="web", service="sites", port=443)
    assert (found.host, found.port, found.is_local) == ("", 9443, False)
    assert found.excluded == ("web",)
    assert found.linger == 5.0
    assert place(REMOTE, linger=0).linger == 0


def test_a_service_in_another_namespace_and_port() -> None:
    found = place(LOCAL, service="other/hooks", service_port=8443, port=1, host="::")
    assert found.address == Address(namespace="other", service="hooks", port=8443)
    assert found.names == ("hooks.other.svc", "hooks.other.svc.cluster.local")
    assert (found.host, found.port) == ("::", 1)


def test_a_url_is_used_as_it_is() -> None:
    found = place(REMOTE, url="https://hooks.example.com:8443/", include_own_namespace=True)
    assert found.address.client_config("/validate/a", b"x") == {
        "url": "https://hooks.example.com:8443/validate/a",
        "caBundle": "eA==",
    }
    assert found.names == ("hooks.example.com",)
    assert found.excluded == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "can't reach webhooks on 127.0.0.1: give the manager webhooks=WebhookOptions"),
        ({"service": "a", "url": "https://b"}, "either service= or url=, not both"),
        ({"service": "a/b/c"}, "'a/b/c' is no service: write name or namespace/name"),
        ({"service": "A"}, "'A' is no service"),
        ({"url": "http://a"}, "'http://a' is no URL of webhooks: write https://HOST:PORT"),
        ({"url": "https://a:x"}, "is no URL of webhooks"),
        ({"url": "https://u@a"}, "is no URL of webhooks"),
        ({"lifetime": 60}, "lifetime 60 is less than an hour"),
    ],
)
def test_an_address_that_can_not_work_is_one_clear_line(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        place(REMOTE, **options)
    assert "\n" not in str(refused.value)
