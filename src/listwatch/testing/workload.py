"""Realistic pods and a realistic stream of changes, the same for each seed."""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

_APPS = ("api", "billing", "cache", "checkout", "frontend", "ingest", "ledger", "mailer", "search")
_TIERS = ("web", "backend", "batch", "data")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_VARIABLES = (
    "DATABASE_URL",
    "LOG_LEVEL",
    "METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "QUEUE_NAME",
    "REGION",
    "SHUTDOWN_GRACE_SECONDS",
)
_TIME = "2026-03-0{day}T1{hour}:{minute:02d}:{second:02d}Z"


class PodGenerator:
    """Generates pods of about 8 KB of JSON each, like a Deployment's pods on a busy cluster.

    They have two containers with environment, probes and mounts, volumes, tolerations, a full
    status, and the `managedFields` of two writers (about a fifth of the bytes). Two generators with
    one seed generate the same pods.

    Args:
        seed: determines the pods.
        namespaces: number of namespaces for the pods, named team-0, team-1 …
        owned: set ReplicaSets as their owners. They don't exist, so a server with a garbage
            collector deletes such pods.
    """

    def __init__(self, seed: int = 0, *, namespaces: int = 10, owned: bool = False) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a workload, not cryptography
        self._namespaces = namespaces
        self._owned = owned

    @property
    def namespaces(self) -> list[str]:
        """The pods' namespaces, which must exist on a server that checks."""
        return [f"team-{number}" for number in range(self._namespaces)]

    def pod(self, number: int) -> dict[str, Any]:
        """Return pod number `number`, without fields that a server sets (uid, versions, times)."""
        pick = self._random
        app = _APPS[number % len(_APPS)]
        replica_set = f"{app}-{self._word(9)}"
        name = f"{replica_set}-{self._word(5)}-{number}"
        node = f"node-{pick.randrange(200):03d}.zone-{'abc'[number % 3]}.example.net"
        labels = {
            "app.kubernetes.io/name": app,
            "app.kubernetes.io/instance": f"{app}-production",
            "app.kubernetes.io/version": f"1.{pick.randrange(40)}.{pick.randrange(20)}",
            "pod-template-hash": replica_set.rpartition("-")[2],
            "tier": pick.choice(_TIERS),
            "owner": "platform",
        }
        containers = [self._container(app, 8080), self._container("envoy-sidecar", 8081)]
        owners = {"ownerReferences": [self._owner(replica_set)]} if self._owned else {}
        return {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "generateName": f"{replica_set}-",
                "namespace": f"team-{number % self._namespaces}",
                "labels": labels,
                "annotations": {
                    "checksum/config": self._hex(64),
                    "prometheus.io/scrape": "true",
                    "prometheus.io/port": "9090",
                    "example.net/description": "Größe und Zweck: bedient die Kundschaft ☕",
                },
                **owners,
                "managedFields": _managed_fields(labels, containers),
            },
            "spec": self._spec(node, containers),
            "status": self._status(containers),
        }

    def changed(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a pod after the kubelet's next status update."""
        pick = self._random
        metadata = pod["metadata"]
        annotations = {**metadata.get("annotations", {}), "example.net/touched": self._hex(12)}
        return {
            **pod,
            "metadata": {**metadata, "annotations": annotations},
            "status": {
                **pod["status"],
                "phase": pick.choice(("Running", "Pending")),
                "conditions": _conditions(pick.choice(("True", "False")), self._time()),
                "containerStatuses": [
                    {**status, "restartCount": status["restartCount"] + pick.randrange(2)}
                    for status in pod["status"]["containerStatuses"]
                ],
            },
        }

    def _owner(self, replica_set: str) -> dict[str, Any]:
        return {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": replica_set,
            "uid": self._uid(),
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def _container(self, name: str, port: int) -> dict[str, Any]:
        pick = self._random
        probe = {
            "httpGet": {"path": "/healthz", "port": port, "scheme": "HTTP"},
            "initialDelaySeconds": 5,
            "timeoutSeconds": 1,
            "periodSeconds": 10,
            "successThreshold": 1,
            "failureThreshold": 3,
        }
        environment: list[dict[str, Any]] = [
            {"name": variable, "value": f"{variable.lower()}-{self._hex(16)}"}
            for variable in _VARIABLES
        ]
        environment.append(
            {
                "name": "POD_IP",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
            }
        )
        return {
            "name": name,
            "image": f"registry.example.net/{name}@sha256:{self._hex(64)}",
            "args": ["--config=/etc/app/config.yaml", f"--shards={pick.randrange(1, 9)}", "--v=2"],
            "ports": [
                {"name": "http", "containerPort": port, "protocol": "TCP"},
                {"name": "metrics", "containerPort": port + 1010, "protocol": "TCP"},
            ],
            "env": environment,
            "resources": {
                "limits": {"cpu": "2", "memory": f"{pick.randrange(256, 4096)}Mi"},
                "requests": {"cpu": "250m", "memory": "256Mi"},
            },
            "volumeMounts": [
                {"name": "config", "readOnly": True, "mountPath": "/etc/app"},
                {"name": "scratch", "mountPath": "/var/tmp"},  # noqa: S108 - part of a pod's message
                {
                    "name": "kube-api-access",
                    "readOnly": True,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                },
            ],
            "livenessProbe": probe,
            "readinessProbe": {**probe, "periodSeconds": 5},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
        }

    def _spec(self, node: str, containers: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "volumes": [
                {"name": "config", "configMap": {"name": "app-config", "defaultMode": 420}},
                {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
                {
                    "name": "kube-api-access",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {"configMap": {"name": "kube-root-ca.crt"}},
                        ],
                        "defaultMode": 420,
                    },
                },
            ],
            "containers": containers,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "nodeName": node,
            "securityContext": {"runAsNonRoot": True, "fsGroup": 2000},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                for key in (
                    "node.kubernetes.io/not-ready",
                    "node.kubernetes.io/unreachable",
                )
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        }

    def _status(self, containers: list[dict[str, Any]]) -> dict[str, Any]:
        pick = self._random
        address = f"10.{pick.randrange(256)}.{pick.randrange(256)}.{pick.randrange(1, 255)}"
        started = self._time()
        return {
            "phase": "Running",
            "conditions": _conditions("True", started),
            "hostIP": f"192.168.{pick.randrange(256)}.{pick.randrange(1, 255)}",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": started,
            "containerStatuses": [
                {
                    "name": container["name"],
                    "state": {"running": {"startedAt": started}},
                    "lastState": {},
                    "ready": True,
                    "restartCount": 0,
                    "image": container["image"],
                    "imageID": container["image"],
                    "containerID": f"containerd://{self._hex(64)}",
                    "started": True,
                }
                for container in containers
            ],
            "qosClass": "Burstable",
        }

    def _word(self, length: int) -> str:
        return "".join(self._random.choices(_SUFFIX, k=length))

    def _hex(self, length: int) -> str:
        return f"{self._random.getrandbits(4 * length):0{length}x}"

    def _uid(self) -> str:
        digits = self._hex(32)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _time(self) -> str:
        pick = self._random
        return _TIME.format(
            day=pick.randrange(1, 10),
            hour=pick.randrange(10),
            minute=pick.randrange(60),
            second=pick.randrange(60),
        )


def _conditions(ready: str, since: str) -> list[dict[str, Any]]:
    return [
        {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": since}
        for kind, status in (
            ("PodReadyToStartContainers", "True"),
            ("Initialized", "True"),
            ("Ready", ready),
            ("ContainersReady", ready),
            ("PodScheduled", "True"),
        )
    ]


def _managed_fields(
    labels: dict[str, str], containers: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    owned: dict[str, Any] = {}
    for container in containers:
        fields: dict[str, Any] = {".": {}}
        for field in container:
            fields[f"f:{field}"] = {}
        fields["f:env"] = {
            ".": {},
            **{
                _list_key(variable["name"]): {".": {}, "f:name": {}, "f:value": {}}
                for variable in container["env"]
            },
        }
        owned[_list_key(container["name"])] = fields
    return [
        {
            "manager": "kube-controller-manager",
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-03-01T10:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, **{f"f:{label}": {} for label in labels}}},
                "f:spec": {"f:containers": owned, "f:restartPolicy": {}, "f:volumes": {}},
            },
        },
        {
            "manager": "kubelet",
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-03-01T10:00:09Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": {"f:conditions": {}, "f:phase": {}, "f:podIP": {}}},
            "subresource": "status",
        },
    ]


def _list_key(name: str) -> str:
    return f'k:{{"name":"{name}"}}'


class ActionType(StrEnum):
    """The type of a write."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Action(msgspec.Struct, frozen=True):
    """One write of a workload, to the object of this body."""

    type: ActionType
    body: dict[str, Any]

    @property
    def key(self) -> str:
        """The object's "namespace/name"."""
        metadata = self.body["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"


class PodWorkload:
    """An endless stream of changes to a number of pods, which stays near that number.

    Of a hundred changes about seventy are updates, ten are deletions, ten recreate a deleted name
    (a new object under an old name, at once or later), and ten are new pods.

    Args:
        pods: number of pods that `populate` creates.
        seed: determines pods and changes.
        generator: generates the pods.
    """

    def __init__(self, pods: int, *, seed: int = 0, generator: PodGenerator | None = None) -> None:
        self.generator = generator or PodGenerator(seed)
        self._pods = pods
        self._random = random.Random(seed + 1)  # noqa: S311 - a workload, not cryptography
        self._alive: dict[str, dict[str, Any]] = {}
        self._gone: list[dict[str, Any]] = []
        self._number = 0

    def populate(self) -> Iterator[Action]:
        """Yield the creations of the first pods."""
        for _ in range(self._pods):
            yield self._create_new()

    def changes(self, count: int) -> Iterator[Action]:
        """Yield this many changes; an object's creation precedes its other changes."""
        pick = self._random
        while count > 0:
            count -= 1
            roll = pick.random()
            room = len(self._alive) < self._pods * 1.1
            if not self._alive or (roll < 0.1 and room):
                yield self._create_new()
            elif roll < 0.2 and room and self._gone:
                yield self._create(self._gone.pop(pick.randrange(len(self._gone))))
            elif roll < 0.3 and len(self._alive) > self._pods * 0.9:
                body = self._delete()
                yield Action(ActionType.DELETE, body)
                if count > 0 and pick.random() < 0.3:
                    count -= 1
                    yield self._create(self._gone.pop())
            else:
                key = pick.choice(list(self._alive))
                self._alive[key] = body = self.generator.changed(self._alive[key])
                yield Action(ActionType.UPDATE, body)

    def _create_new(self) -> Action:
        self._number += 1
        return self._create(self.generator.pod(self._number - 1))

    def _create(self, body: dict[str, Any]) -> Action:
        action = Action(ActionType.CREATE, body)
        self._alive[action.key] = body
        return action

    def _delete(self) -> dict[str, Any]:
        body = self._alive.pop(self._random.choice(list(self._alive)))
        self._gone.append(body)
        return body
