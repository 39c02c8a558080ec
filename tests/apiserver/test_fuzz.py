"""The server answers every request, and never with an internal failure."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Self

import aiohttp
import pytest
import yarl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from listwatch.apiserver import EmbeddedAPIServer

_NAMES = st.sampled_from(["a", "b", "web", "default", "-x", "Ü", "a%2Fb", "..", "x" * 300, ""])
_CORE = "/api/v1/namespaces/default"
_COLLECTIONS = st.sampled_from(
    [
        f"{_CORE}/configmaps",
        f"{_CORE}/pods",
        f"{_CORE}/services",
        f"{_CORE}/secrets",
        f"{_CORE}/events",
        f"{_CORE}/serviceaccounts",
        f"{_CORE}/persistentvolumeclaims",
        "/api/v1/namespaces",
        "/api/v1/nodes",
        "/api/v1/pods",
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/batch/v1/namespaces/default/jobs",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "/apis/events.k8s.io/v1/namespaces/default/events",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/example.com/v1/namespaces/default/widgets",
        "/apis/nope.example.com/v1/things",
        "/api/v1/watch/pods",
        "/openapi/v3",
    ]
)
_SUBRESOURCES = st.sampled_from(["", "", "", "/status", "/scale", "/binding", "/log", "/finalize"])


@st.composite
def paths(draw: st.DrawFn) -> str:
    collection = draw(_COLLECTIONS)
    name = draw(st.just("") | st.sampled_from(["/a", "/b"]) | _NAMES.map(lambda text: f"/{text}"))
    return f"{collection}{name}{draw(_SUBRESOURCES) if name else ''}"


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
_FIELDS = st.sampled_from(
    [
        "metadata",
        "spec",
        "status",
        "data",
        "stringData",
        "kind",
        "apiVersion",
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "managedFields",
        "resourceVersion",
        "uid",
        "generateName",
        "deletionTimestamp",
        "containers",
        "template",
        "selector",
        "matchLabels",
        "ports",
        "replicas",
        "names",
        "versions",
        "schema",
        "openAPIV3Schema",
        "properties",
        "rules",
        "type",
        "op",
        "path",
        "value",
        "$patch",
        "$setElementOrder/containers",
        "preconditions",
        "propagationPolicy",
        "nodeName",
        "limits",
        "resources",
        "items",
        "eventTime",
    ]
)
_OBJECTS = st.recursive(
    st.dictionaries(_FIELDS, _VALUES, max_size=4),
    lambda inner: st.dictionaries(
        _FIELDS, inner | st.lists(inner, max_size=2) | _SCALARS, max_size=5
    ),
    max_leaves=12,
)
_REALISTIC = st.builds(
    lambda name, spec, extra, kind: {**kind, "metadata": {"name": name, **extra}, "spec": spec},
    st.sampled_from(["a", "b"]),
    _OBJECTS,
    st.dictionaries(
        st.sampled_from(["labels", "finalizers", "ownerReferences", "annotations"]),
        _VALUES,
        max_size=1,
    ),
    st.sampled_from(
        [
            {},
            {"apiVersion": "v1", "kind": "ConfigMap"},
            {"apiVersion": "apps/v1", "kind": "Deployment"},
            {"apiVersion": "example.com/v1", "kind": "Widget"},
        ]
    ),
)
_BODIES = st.one_of(
    st.none(),
    st.binary(max_size=40),
    _OBJECTS.map(lambda value: json.dumps(value).encode()),
    _REALISTIC.map(lambda value: json.dumps(value).encode()),
    st.lists(_OBJECTS, max_size=3).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=60).map(lambda data: b"k8s\x00" + data),
)
_TYPES = st.sampled_from(
    [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "text/plain",
        ";;",
    ]
)
_ACCEPTS = st.sampled_from(
    [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "*/*",
        "q=;=,,",
        "",
    ]
)
_QUERIES = st.dictionaries(
    st.sampled_from(
        [
            "limit",
            "continue",
            "resourceVersion",
            "resourceVersionMatch",
            "labelSelector",
            "fieldSelector",
            "dryRun",
            "fieldManager",
            "force",
            "fieldValidation",
            "gracePeriodSeconds",
            "propagationPolicy",
            "includeObject",
            "pretty",
        ]
    ),
    st.sampled_from(
        [
            "",
            "1",
            "0",
            "-1",
            "All",
            "true",
            "Exact",
            "NotOlderThan",
            "a=b",
            "a in (",
            "x" * 200,
            "é",
        ]
    ),
    max_size=3,
)


_WIDGETS = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "replicas": {"type": "integer", "minimum": 0, "default": 1},
                                    "type": {"type": "string", "enum": ["a", "b"]},
                                    "ports": {"type": "array", "items": {"type": "integer"}},
                                    "data": {
                                        "type": "object",
                                        "x-kubernetes-preserve-unknown-fields": True,
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


class _Fuzzed:
    """A server and a client on one event loop, shared by all requests."""

    def __init__(self) -> None:
        self._loop = asyncio.Runner()
        self._server = EmbeddedAPIServer(seed=1)
        self._session: aiohttp.ClientSession | None = None

    async def _open(self) -> None:
        await self._server.start()
        self._session = aiohttp.ClientSession()
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for collection, made in (
            (crds, _WIDGETS),
            (f"{_CORE}/configmaps", {}),
            (f"{_CORE}/pods", {"spec": {"containers": [{"name": "c", "image": "i"}]}}),
            (f"{_CORE}/services", {"spec": {"ports": [{"port": 80}]}}),
        ):
            body = json.dumps({"metadata": {"name": "a"}, **made}).encode()
            options: Any = {"kind": "application/json", "accept": "", "query": {}}
            status, text = await self._send("POST", collection, body, **options)
            assert status == 201, text

    async def _close(self) -> None:
        assert self._session is not None
        await self._session.close()
        await self._server.stop()

    def __enter__(self) -> Self:
        self._loop.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._close())
        self._loop.close()

    def send(self, method: str, path: str, body: bytes | None, **options: Any) -> tuple[int, str]:
        return self._loop.run(self._send(method, path, body, **options))

    async def _send(
        self, method: str, path: str, body: bytes | None, **options: Any
    ) -> tuple[int, str]:
        assert self._session is not None
        url = yarl.URL(self._server.url + path, encoded=False).with_query(options["query"])
        headers = {"Content-Type": options["kind"], "Accept": options["accept"]}
        async with asyncio.timeout(40):
            async with self._session.request(method, url, data=body, headers=headers) as answer:
                if "watch" in path:
                    return answer.status, ""
                return answer.status, (await answer.read()).decode(errors="replace")


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[_Fuzzed]:
    with _Fuzzed() as fuzzed:
        yield fuzzed


@given(
    method=st.sampled_from(["GET", "POST", "POST", "PUT", "PATCH", "PATCH", "DELETE", "HEAD"]),
    path=paths(),
    body=_BODIES,
    kind=_TYPES,
    accept=_ACCEPTS,
    query=_QUERIES.filter(lambda query: query.get("resourceVersion") != "1" * 9),
)
@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_no_request_makes_the_server_fail(
    fuzzed: _Fuzzed,
    method: str,
    path: str,
    body: bytes | None,
    kind: str,
    accept: str,
    query: dict[str, str],
) -> None:
    status, text = fuzzed.send(method, path, body, kind=kind, accept=accept, query=query)
    assert 200 <= status < 600
    assert "the server failed" not in text, text


_OBJECT_PATHS = st.sampled_from(
    [
        f"{_CORE}/configmaps/a",
        f"{_CORE}/pods/a",
        f"{_CORE}/pods/a/status",
        f"{_CORE}/services/a",
        "/api/v1/namespaces/default",
        "/apis/apps/v1/namespaces/default/deployments/a",
        "/apis/apps/v1/namespaces/default/deployments/a/scale",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com",
        "/apis/example.com/v1/namespaces/default/widgets/a",
        "/apis/example.com/v1/namespaces/default/widgets/a/status",
    ]
)
_OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
            "path": st.sampled_from(
                [
                    "/metadata/labels",
                    "/metadata/name",
                    "/spec",
                    "/spec/containers/0",
                    "/data/k",
                    "",
                    "/",
                ]
            ),
        },
        optional={"value": _VALUES, "from": st.sampled_from(["/metadata", "/spec", "/data"])},
    ),
    max_size=4,
)
_WRITES = st.one_of(
    st.tuples(st.just("PUT"), st.just("application/json"), _REALISTIC),
    st.tuples(st.just("PATCH"), st.just("application/merge-patch+json"), _REALISTIC | _OBJECTS),
    st.tuples(
        st.just("PATCH"), st.just("application/strategic-merge-patch+json"), _REALISTIC | _OBJECTS
    ),
    st.tuples(st.just("PATCH"), st.just("application/json-patch+json"), _OPERATIONS),
    st.tuples(st.just("PATCH"), st.just("application/apply-patch+yaml"), _REALISTIC),
    st.tuples(st.just("DELETE"), st.just("application/json"), _OBJECTS),
)


@given(path=_OBJECT_PATHS, write=_WRITES)
@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_no_write_to_an_object_makes_the_server_fail(
    fuzzed: _Fuzzed, path: str, write: tuple[str, str, Any]
) -> None:
    method, kind, value = write
    if method == "PUT" and isinstance(value, dict):
        name = path.split("/")[7 if "/apis/" in path else 6 :][:1]
        value["metadata"] = {**value.get("metadata", {}), "name": name[0] if name else "default"}
    query = {"fieldManager": "m", "dryRun": "All"} if method == "DELETE" else {"fieldManager": "m"}
    status, text = fuzzed.send(
        method, path, json.dumps(value).encode(), kind=kind, accept="", query=query
    )
    assert 200 <= status < 600
    assert "the server failed" not in text, text
