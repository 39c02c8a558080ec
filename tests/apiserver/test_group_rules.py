"""Kinds other than workloads: defaults, refusals and their messages."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.schema.go_words import go_words

NETWORK = "/apis/networking.k8s.io/v1/namespaces/default"
POD = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}
ALWAYS = {"containers": [{"name": "a", "image": "b"}]}
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with EmbeddedAPIServer() as server, Client(server) as client:
        yield client


def ingress(path: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"rules": [{"host": "*.example.com", "http": {"paths": [path]}}]}}


SERVICE = {"service": {"name": "s", "port": {"number": 80}}}

GOOD: list[tuple[str, dict[str, Any]]] = [
    (
        "/apis/batch/v1/namespaces/default/cronjobs",
        {"spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": {"spec": POD}}}}},
    ),
    (f"{NETWORK}/ingresses", ingress({"path": "/", "pathType": "Prefix", "backend": SERVICE})),
    (
        f"{NETWORK}/ingresses",
        ingress({"pathType": "ImplementationSpecific", "backend": SERVICE}),
    ),
    (f"{NETWORK}/ingresses", {"spec": {"defaultBackend": SERVICE}}),
    (
        f"{NETWORK}/ingresses",
        {"spec": {"defaultBackend": {"resource": {"kind": "Bucket", "name": "b"}}}},
    ),
    ("/apis/networking.k8s.io/v1/ingressclasses", {"spec": {"controller": "acme.io/foo"}}),
    (
        "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
        {"spec": {"scaleTargetRef": TARGET, "maxReplicas": 1}},
    ),
    (
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        {"spec": {"minAvailable": "50%", "selector": {}}},
    ),
    ("/apis/storage.k8s.io/v1/storageclasses", {"provisioner": "x"}),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", {"value": 1_000_000_000}),
    (f"{CORE}/resourcequotas", {"spec": {"hard": {"pods": "4", "requests.cpu": "1500m"}}}),
    (
        f"{CORE}/limitranges",
        {"spec": {"limits": [{"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2"}}]}},
    ),
    (
        "/api/v1/persistentvolumes",
        {
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/x"},
            }
        },
    ),
    (
        f"{CORE}/endpoints",
        {"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1}]}]},
    ),
    ("/apis/node.k8s.io/v1/runtimeclasses", {"handler": "runc"}),
    ("/apis/apps/v1/namespaces/default/controllerrevisions", {"revision": 1, "data": {}}),
    (
        f"{CORE}/replicationcontrollers",
        {"spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": ALWAYS}}},
    ),
    (f"{CORE}/podtemplates", {"template": {"spec": ALWAYS}}),
    (
        f"{CORE}/secrets",
        {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}},
    ),
    (f"{CORE}/secrets", {"type": "kubernetes.io/basic-auth", "stringData": {"username": ""}}),
]


@pytest.mark.parametrize(("path", "obj"), GOOD, ids=lambda value: str(value)[-40:])
async def test_an_object_within_the_rules_is_stored(
    client: Client, path: str, obj: dict[str, Any]
) -> None:
    await client.call("POST", path, {"metadata": {"name": "x"}, **obj}, expect=201)
    labels = {"metadata": {"labels": {"a": "b"}}}
    await client.call("PATCH", f"{path}/x", labels, headers=MERGE, expect=200)


MERGE = {"Content-Type": "application/merge-patch+json"}

BAD: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (
        "/apis/batch/v1/namespaces/default/cronjobs",
        {"spec": {"schedule": "bad", "jobTemplate": {"spec": {"template": {"spec": ALWAYS}}}}},
        {
            "spec.schedule": 'Invalid value: "bad": expected exactly 5 fields, found 1: [bad]',
            "spec.jobTemplate.spec.template.spec.restartPolicy": (
                'Required value: valid values: "OnFailure", "Never"'
            ),
        },
    ),
    (
        f"{NETWORK}/ingresses",
        {},
        {"spec": "Invalid value: null: either `defaultBackend` or `rules` must be specified"},
    ),
    (
        f"{NETWORK}/ingresses",
        ingress({"path": "x", "pathType": "Exact", "backend": {"service": {"name": "s"}}}),
        {
            "spec.rules[0].http.paths[0].path": 'Invalid value: "x": must be an absolute path',
            "spec.rules[0].http.paths[0].backend": (
                "Required value: port name or number is required"
            ),
        },
    ),
    (
        f"{NETWORK}/ingresses",
        ingress({"path": "/", "backend": SERVICE}),
        {"spec.rules[0].http.paths[0].pathType": "Required value: pathType must be specified"},
    ),
    (
        "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
        {"spec": {"scaleTargetRef": TARGET, "minReplicas": 0, "maxReplicas": -1}},
        {
            "spec.minReplicas": "Invalid value: 0: must be greater than or equal to 1",
            "spec.maxReplicas": (
                "Invalid value: -1: must be greater than or equal to `minReplicas`"
            ),
            "spec.metrics": (
                "Forbidden: must specify at least one Object or External metric to support scaling "
                "to zero replicas"
            ),
        },
    ),
    (
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        {"spec": {"minAvailable": "150%", "selector": {}}},
        {"spec.minAvailable": 'Invalid value: "150%": must not be greater than 100%'},
    ),
    ("/apis/storage.k8s.io/v1/storageclasses", {}, {"provisioner": "Required value"}),
    (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"value": 1_000_000_001},
        {"value": ("Forbidden: maximum allowed value of a user defined priority is 1000000000")},
    ),
    (
        f"{CORE}/limitranges",
        {"spec": {"limits": [{"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "500m"}}]}},
        {
            "spec.limits[0].min[cpu]": (
                'Invalid value: "2": min value 2 is greater than max value 500m'
            )
        },
    ),
    (
        "/api/v1/persistentvolumes",
        {"spec": {"capacity": {"storage": "1Gi"}}},
        {
            "spec.accessModes": "Required value",
            "spec": "Required value: must specify a volume type",
        },
    ),
    (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        {"rules": [{"verbs": ["get"]}, {"nonResourceURLs": ["/x"], "resources": ["pods"]}]},
        {
            "rules[0].apiGroups": (
                "Required value: resource rules must supply at least one api group"
            ),
            "rules[0].resources": (
                "Required value: resource rules must supply at least one resource"
            ),
            "rules[1].verbs": "Required value: verbs must contain at least one value",
            "rules[1].nonResourceURLs": (
                'Invalid value: ["/x"]: rules cannot apply to both regular resources and '
                "non-resource URLs"
            ),
        },
    ),
    (
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "s"}, {"kind": "Robot"}],
        },
        {
            "roleRef.kind": 'Unsupported value: "Role": supported values: "ClusterRole"',
            "subjects[0].namespace": "Required value",
            "subjects[1].name": "Required value",
            "subjects[1].kind": (
                'Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group"'
            ),
        },
    ),
    (
        f"{NETWORK}/networkpolicies",
        {
            "spec": {
                "policyTypes": ["Both"],
                "egress": [
                    {
                        "ports": [{"port": 9, "endPort": 8}],
                        "to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/9"]}}, {}],
                    }
                ],
            }
        },
        {
            "spec.policyTypes[0]": (
                'Unsupported value: "Both": supported values: "Ingress", "Egress"'
            ),
            "spec.egress[0].ports[0].endPort": (
                "Invalid value: 8: must be greater than or equal to `port`"
            ),
            "spec.egress[0].to[0].ipBlock.except[0]": (
                'Invalid value: "11.0.0.0/9": must be a strict subset of `cidr`'
            ),
            "spec.egress[0].to[1]": "Required value: must specify a peer",
        },
    ),
    (
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        {"spec": {"request": "YQ==", "signerName": "x", "expirationSeconds": 1}},
        {
            "spec.request": ('Invalid value: "YQ==": PEM block type must be CERTIFICATE REQUEST'),
            "spec.usages": "Required value",
            "spec.signerName": (
                'Invalid value: "x": must be a fully qualified domain and path of the form '
                '"example.com/signer-name"'
            ),
            "spec.expirationSeconds": (
                "Invalid value: 1: may not specify a duration less than 600 seconds (10 minutes)"
            ),
        },
    ),
    (
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        {"webhooks": [{"name": "a.b"}]},
        {
            "webhooks[0].name": (
                'Invalid value: "a.b": should be a domain with at least three segments separated '
                "by dots"
            ),
            "webhooks[0].admissionReviewVersions": (
                "Required value: must specify one of v1, v1beta1"
            ),
            "webhooks[0].sideEffects": ("Required value: must specify one of None, NoneOnDryRun"),
            "webhooks[0].clientConfig": (
                "Required value: exactly one of url or service is required"
            ),
        },
    ),
    (
        f"{CORE}/resourcequotas",
        {"spec": {"hard": {"turtles": "1", "example.com/turtles": "1"}}},
        {"spec.hard[turtles]": 'Invalid value: "turtles": must be a standard resource for quota'},
    ),
    (
        f"{CORE}/pods",
        {
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "i",
                        "env": [{"name": "a=b"}],
                        "livenessProbe": {},
                        "resources": {"limits": {"cpu": "-1"}},
                    }
                ]
            }
        },
        {
            "spec.containers[0].env[0].name": (
                'Invalid value: "a=b": a valid environment variable name must consist only of '
                "printable ASCII characters other than '='"
            ),
            "spec.containers[0].livenessProbe": "Required value: must specify a handler type",
            "spec.containers[0].resources.limits[cpu]": (
                'Invalid value: "-1": must be greater than or equal to 0'
            ),
            "spec.containers[0].resources.requests[cpu]": (
                'Invalid value: "-1": must be greater than or equal to 0'
            ),
        },
    ),
    (
        f"{CORE}/secrets",
        {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "x"}},
        {
            "data[.dockerconfigjson]": (
                'Invalid value: "<secret contents redacted>": '
                "invalid character 'x' looking for beginning of value"
            )
        },
    ),
]


@pytest.mark.parametrize(("path", "obj", "causes"), BAD, ids=lambda value: str(value)[-40:])
async def test_an_object_beyond_the_rules_is_refused_with_each_cause(
    client: Client, path: str, obj: dict[str, Any], causes: dict[str, str]
) -> None:
    body = {"metadata": {"name": "x"}, **obj}
    status = await client.call("POST", path, body, expect=422)
    assert {each["field"]: each["message"] for each in status["details"]["causes"]} == causes


async def test_a_limit_is_the_default_of_requests(client: Client) -> None:
    limits = [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Gi"}}]
    body = {"metadata": {"name": "x"}, "spec": {"limits": limits}}
    made = await client.call("POST", f"{CORE}/limitranges", body, expect=201)
    assert made["spec"]["limits"][0] == {
        **limits[0],
        "default": {"cpu": "2"},
        "defaultRequest": {"cpu": "2", "memory": "1Gi"},
    }


UPDATES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, str]]] = [
    (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"value": 1},
        {"value": 2},
        {"value": "Forbidden: may not be changed in an update."},
    ),
    (
        "/apis/storage.k8s.io/v1/storageclasses",
        {"provisioner": "p"},
        {"parameters": {"a": "b"}},
        {"parameters": 'Invalid value: {"a":"b"}: field is immutable'},
    ),
    (
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
        {"roleRef": {"kind": "Role", "name": "a"}},
        {"roleRef": {"name": "b"}},
        {
            "roleRef": (
                'Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"Role","Name":"b"}: '
                "cannot change roleRef"
            )
        },
    ),
    (
        "/apis/node.k8s.io/v1/runtimeclasses",
        {"handler": "runc"},
        {"handler": "other"},
        {"handler": 'Invalid value: "other": field is immutable'},
    ),
]


@pytest.mark.parametrize(("path", "obj", "change", "causes"), UPDATES, ids=lambda x: str(x)[-40:])
async def test_what_may_not_change_is_refused_in_the_kinds_own_words(
    client: Client, path: str, obj: dict[str, Any], change: dict[str, Any], causes: dict[str, str]
) -> None:
    await client.call("POST", path, {"metadata": {"name": "x"}, **obj}, expect=201)
    status = await client.call("PATCH", f"{path}/x", change, headers=MERGE, expect=422)
    assert [(each["field"], each["message"]) for each in status["details"]["causes"]] == list(
        causes.items()
    )


async def test_a_strategic_merge_of_another_type_fails_in_its_converters_words(
    client: Client,
) -> None:
    spec = {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": ALWAYS},
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    await client.call("POST", path, {"metadata": {"name": "x"}, "spec": spec}, expect=201)
    strategic = {"Content-Type": "application/strategic-merge-patch+json"}
    for change, words in (
        ({"replicas": "x"}, "unrecognized type: int32"),
        ({"minReadySeconds": 1.5}, "cannot convert float64 to int32"),
        ({"paused": 1}, "unrecognized type: bool"),
        ({"strategy": {"type": 3}}, "cannot convert int64 to string"),
        ({"template": []}, "cannot restore struct from: slice"),
        ({"template": {"metadata": {"labels": "a"}}}, "cannot restore map from string"),
        ({"template": {"spec": {"volumes": {}}}}, "cannot restore slice from map"),
    ):
        body: dict[str, Any] = {"spec": change}
        status = await client.call("PATCH", f"{path}/x", body, headers=strategic, expect=422)
        (cause,) = status["details"]["causes"]
        assert cause["field"] == "patch"
        assert cause["message"] == f'Invalid value: "{go_words(body)}": {words}'


async def test_items_of_keyed_lists_need_keys_of_their_own_in_an_apply(client: Client) -> None:
    apply = {"Content-Type": "application/apply-patch+yaml"}
    path = f"{CORE}/pods/x"
    start = "failed to create typed patch object (/x; /v1, Kind=Pod): .spec.containers: "
    for containers, words in (
        (
            [{"image": "i"}],
            (
                'element 0: associative list with keys has an element that omits key field "name" '
                "(and doesn't have default value)"
            ),
        ),
        ([{"name": "a"}, {"name": "a"}], 'duplicate entries for key [name="a"]'),
        (["a"], "element 0: associative list with keys may not have non-map elements"),
    ):
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
        body |= {"spec": {"containers": containers}}
        where = f"{path}?fieldManager=m"
        status = await client.call("PATCH", where, body, headers=apply, expect=500)
        assert status["message"] == start + words


async def test_a_definition_has_one_storage_version_and_no_half_conversion(client: Client) -> None:
    version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    body: dict[str, Any] = {
        "metadata": {"name": "ws.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "ws", "kind": "W"},
            "versions": [version],
            "conversion": {"strategy": "Webhook"},
            "preserveUnknownFields": True,
        },
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    status = await client.call("POST", path, body, expect=422)
    inside = (
        '[{"Name":"v1","Served":true,"Storage":false,"Deprecated":false,'
        '"DeprecationWarning":null,"Schema":null,"Subresources":null,'
        '"AdditionalPrinterColumns":null,"SelectableFields":null}]'
    )
    assert {each["field"]: each["message"] for each in status["details"]["causes"]} == {
        "spec.conversion.strategy": (
            'Invalid value: "Webhook": must be None if spec.preserveUnknownFields is true'
        ),
        "spec.preserveUnknownFields": (
            "Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to "
            "true in spec.versions[*].schema instead"
        ),
        "spec.conversion.webhookClientConfig": (
            "Required value: required when strategy is set to Webhook"
        ),
        "spec.conversion.conversionReviewVersions": "Required value",
        "spec.versions": (
            f"Invalid value: {inside}: must have exactly one version marked as storage version"
        ),
        "status.storedVersions": "Invalid value: null: must have at least one stored version",
    }


async def test_a_headless_service_without_selector_leads_to_both_families(client: Client) -> None:
    for selector, families in (({}, ["IPv4", "IPv6"]), ({"a": "b"}, ["IPv4"])):
        spec = {"clusterIP": "None", "ports": [{"port": 80}], "selector": selector}
        body = {"metadata": {"generateName": "x"}, "spec": spec}
        made = await client.call("POST", f"{CORE}/services", body, expect=201)
        assert made["spec"]["ipFamilies"] == families
        policy = "RequireDualStack" if len(families) == 2 else "SingleStack"
        assert made["spec"]["ipFamilyPolicy"] == policy


async def test_a_deprecated_kind_warns_in_every_answer(client: Client) -> None:
    words = '299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"'
    path = f"{CORE}/endpoints"
    async with aiohttp.ClientSession(client.server.url) as session:
        for method, where, body in (
            ("POST", path, {"metadata": {"name": "x"}}),
            ("GET", path, None),
            ("GET", f"{path}/x", None),
            ("DELETE", f"{path}/x", None),
        ):
            async with session.request(method, where, json=body) as answer:
                assert answer.headers.getall("Warning") == [words], method


TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


async def test_numbers_in_tables_are_numbers_also_in_columns_of_strings(client: Client) -> None:
    spec = {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": ALWAYS},
    }
    for path, obj, cells in (
        (f"{APPS}/deployments", {"spec": spec}, ["x", "0/1", 0, 0]),
        (f"{APPS}/controllerrevisions", {"revision": 3, "data": {}}, ["x", "<none>", 3]),
        (f"{SCALERS}", {"spec": {"scaleTargetRef": TARGET, "maxReplicas": 3}}, SCALER_CELLS),
        ("/apis/storage.k8s.io/v1/storageclasses", {"provisioner": "p"}, STORAGE_CELLS),
    ):
        await client.call("POST", path, {"metadata": {"name": "x"}, **obj}, expect=201)
        table = await client.call("GET", path, headers=TABLE, expect=200)
        found = table["rows"][0]["cells"][: len(cells)]
        assert [(type(cell), cell) for cell in found] == [(type(cell), cell) for cell in cells]


APPS = "/apis/apps/v1/namespaces/default"
SCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
SCALER_CELLS = ["x", "Deployment/x", "cpu: <unknown>/80%", "1", 3, 0]
STORAGE_CELLS = ["x", "p", "Delete", "Immediate", False]


async def test_a_signing_request_tells_who_asks_whatever_its_client_says(client: Client) -> None:
    request = base64.b64encode(b"-----BEGIN CERTIFICATE REQUEST-----\n").decode()
    spec = {"request": request, "signerName": "a.b/c", "usages": ["client auth"], "uid": "9"}
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    body = {"metadata": {"name": "x"}, "spec": {**spec, "username": "root", "groups": ["wheel"]}}
    made = await client.call("POST", path, body, expect=201)
    assert made["spec"]["username"] == "kubernetes-admin"
    assert made["spec"]["groups"] == ["system:masters", "system:authenticated"]
    assert "uid" not in made["spec"]


async def test_webhooks_have_their_defaults(client: Client) -> None:
    service = {"name": "s", "namespace": "default"}
    hook: dict[str, Any] = {
        "name": "a.b.c",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}
        ],
    }
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    made = await client.call("POST", path, {"metadata": {"name": "x"}, "webhooks": [hook]})
    assert made["webhooks"][0] == {
        **hook,
        "clientConfig": {"service": {**service, "port": 443}},
        "rules": [{**hook["rules"][0], "scope": "*"}],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "reinvocationPolicy": "Never",
        "timeoutSeconds": 10,
    }


async def test_events_of_both_groups_are_chosen_by_the_names_of_each(client: Client) -> None:
    core, new = f"{CORE}/events", "/apis/events.k8s.io/v1/namespaces/default/events"
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    body = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "R", "type": "Normal"}
    await client.call("POST", core, body, expect=201)
    for path, name, other in (
        (core, "involvedObject.name", "regarding.name"),
        (new, "regarding.name", "involvedObject.name"),
    ):
        for value, count in (("p", 1), ("q", 0)):
            found = await client.call("GET", f"{path}?fieldSelector={name}%3D{value}", expect=200)
            assert len(found["items"]) == count
        refused = await client.call("GET", f"{path}?fieldSelector={other}%3Dp", expect=400)
        assert refused["message"] == f"field label not supported: {other}"


async def test_objects_show_the_defaults_that_their_schema_got_later(client: Client) -> None:
    def schema(**fields: Any) -> dict[str, Any]:
        spec = {"type": "object", "properties": {"a": {"type": "string"}, **fields}}
        return {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}

    version = {"name": "v1", "served": True, "storage": True, "schema": schema()}
    spec = {
        "group": "example.com",
        "scope": "Cluster",
        "names": {"plural": "ws", "kind": "W"},
        "versions": [version],
    }
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    body = {"metadata": {"name": "ws.example.com"}, "spec": spec}
    await client.call("POST", crds, body, expect=201)
    await client.call("GET", f"{crds}/ws.example.com", expect=200)
    path = "/apis/example.com/v1/ws"
    obj = {"apiVersion": "example.com/v1", "kind": "W", "metadata": {"name": "x"}}
    made = await client.call("POST", path, {**obj, "spec": {"a": "b"}}, expect=201)
    later = {**version, "schema": schema(size={"type": "integer", "default": 3})}
    change = {"spec": {"versions": [later]}}
    await client.call("PATCH", f"{crds}/ws.example.com", change, headers=MERGE, expect=200)
    found = await client.call("GET", f"{path}/x", expect=200)
    assert found == {**made, "spec": {"a": "b", "size": 3}}


def base64_of(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize(
    ("plural", "field"), [("configmaps", "data"), ("configmaps", "binaryData"), ("secrets", "data")]
)
async def test_a_mebibyte_of_data_is_the_limit(
    client: Client, plural: str, field: str, over: int
) -> None:
    """The limit is exact, and counts decoded bytes."""
    plain = (plural, field) == ("configmaps", "data")
    value = "x" * 2**19 if plain else base64_of(2**19)
    rest = "x" * (2**19 + over) if plain else base64_of(2**19 + over)
    body = {"metadata": {"name": "big"}, field: {"a": value, "b": rest}}
    answer = await client.call("POST", f"{CORE}/{plural}", body, expect=422 if over else 201)
    if over:
        kind, path = ("ConfigMap", "[]") if plural == "configmaps" else ("Secret", "data")
        why = "Too long: may not be more than 1048576 bytes"
        assert answer["message"] == f'{kind} "big" is invalid: {path}: {why}'
        assert answer["details"]["causes"] == [
            {"reason": "FieldValueTooLong", "message": why, "field": path}
        ]
