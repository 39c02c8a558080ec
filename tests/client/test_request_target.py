"""What a request is about, read from its method and path."""

import pytest

from listwatch.client.request_target import RequestTarget, target_of, verb_of


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/api/v1/namespaces/ns/pods", RequestTarget("", "v1", "pods", "ns", "", "")),
        ("/api/v1/namespaces/ns/pods/a", RequestTarget("", "v1", "pods", "ns", "a", "")),
        (
            "/api/v1/namespaces/ns/pods/a/status",
            RequestTarget("", "v1", "pods", "ns", "a", "status"),
        ),
        ("/api/v1/namespaces/ns", RequestTarget("", "v1", "namespaces", "", "ns", "")),
        ("/api/v1/namespaces/ns/status", RequestTarget("", "v1", "namespaces", "", "ns", "status")),
        (
            "/api/v1/namespaces/ns/finalize",
            RequestTarget("", "v1", "namespaces", "", "ns", "finalize"),
        ),
        ("/api/v1/nodes", RequestTarget("", "v1", "nodes", "", "", "")),
        ("/apis/a.io/v1/namespaces/n/bs/a%3Ab", RequestTarget("a.io", "v1", "bs", "n", "a:b", "")),
        ("/apis/a.io/v1/bs/b/scale", RequestTarget("a.io", "v1", "bs", "", "b", "scale")),
        ("/apis/a.io/v1", None),
        ("/version", None),
        ("/", None),
    ],
)
def test_a_path_tells_its_target(path: str, target: RequestTarget | None) -> None:
    assert target_of(path) == target


@pytest.mark.parametrize(
    ("method", "path", "query", "content_type", "verb"),
    [
        ("GET", "/api/v1/pods", [], "", "LIST"),
        ("GET", "/api/v1/pods", [("watch", "1")], "", "WATCH"),
        ("GET", "/api/v1/pods", [("watch", "0")], "", "LIST"),
        ("GET", "/api/v1/namespaces/ns/pods/a", [], "", "GET"),
        ("GET", "/version", [], "", "GET"),
        ("POST", "/api/v1/namespaces/ns/pods", [], "application/json", "POST"),
        ("PATCH", "/api/v1/nodes/a", [], "application/merge-patch+json", "PATCH"),
        ("PATCH", "/api/v1/nodes/a", [], "application/apply-patch+yaml", "APPLY"),
        ("DELETE", "/api/v1/nodes/a", [], "", "DELETE"),
        ("DELETE", "/api/v1/nodes", [], "", "DELETECOLLECTION"),
    ],
)
def test_verbs_are_those_of_an_api_servers_metrics(
    method: str, path: str, query: list[tuple[str, str]], content_type: str, verb: str
) -> None:
    assert verb_of(method, target_of(path), query, content_type) == verb


def test_a_resource_is_named_with_its_group_and_subresource() -> None:
    target = target_of("/apis/apps/v1/namespaces/ns/deployments/a/status")
    assert target is not None
    assert target.resource == "deployments.apps/status"
