"""The objects with which a program runs in a cluster."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from listwatch.errors import ConfigError
from listwatch.runtime.manager import Manager
from listwatch.runtime.packaging.rbac import check_names
from listwatch.selector import dns_label_problems
from listwatch.webhooks.options import place_of
from listwatch.webhooks.registration import MUTATING, VALIDATING, Wanted

#: Where a program serves health checks and metrics in its pod.
HEALTH_PORT: Final = 8080
_NAME: Final = "app.kubernetes.io/name"
#: Seconds that a pod gets beyond the program's own grace.
_SPARE: Final = 10
_RESOURCES: Final = {
    "requests": {"cpu": "50m", "memory": "128Mi"},
    "limits": {"memory": "512Mi"},
}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What of the objects differs from cluster to cluster.

    A Helm chart has words in place of these values, which it replaces by its own.

    Attributes:
        namespace: that the program runs in.
        image: that contains the program's file.
        pull_policy: of the image; "" for Kubernetes' default.
        replicas: of the Deployment.
        resources: of the container.
        arguments: further ones for `listwatch run`.
    """

    namespace: str
    image: str
    pull_policy: str = ""
    replicas: int | str
    resources: Mapping[str, Any] | str = msgspec.field(default_factory=lambda: dict(_RESOURCES))
    arguments: Sequence[str] = ()


class ProgramObjects:
    """Makes the objects of one program.

    Args:
        app: the program.
        file: name of its file in the image, below /app.
        setting: the rest.

    Raises:
        ConfigError: a server would refuse the program's name or the namespace, or the options of
            its webhooks are invalid.
    """

    def __init__(self, app: Manager, file: str, setting: Setting) -> None:
        check_names(app.name, setting.namespace)
        if problems := dns_label_problems(app.name):
            raise ConfigError(
                f"the Manager's name {app.name!r} can't name a Service: {problems[0]}"
            )
        self._app = app
        self._file = file
        self._setting = setting
        self._selector = {_NAME: app.name}
        self._wanted: Wanted | None = None
        #: The port that the webhooks listen on; 0 without webhooks.
        self.webhook_port = 0
        if app.webhooks:
            options = app.webhooks.options
            service = options.service or ("" if options.url else app.name)
            options = msgspec.structs.replace(options, service=service)
            place = place_of(options, app.name, setting.namespace, "")
            self._wanted = app.webhooks.wanted(place)
            self.webhook_port = place.port

    def labelled(self, objects: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the objects with the program's label."""
        found = []
        for obj in objects:
            metadata = dict(obj["metadata"])
            labels = {**metadata.pop("labels", {}), **self._selector}
            head = {key: obj[key] for key in ("apiVersion", "kind")}
            rest = {key: value for key, value in obj.items() if key not in {*head, "metadata"}}
            found.append({**head, "metadata": {**metadata, "labels": labels}, **rest})
        return found

    def namespace(self) -> list[dict[str, Any]]:
        """Return the namespace, in which only restricted pods run; none for a cluster's own.

        Other pods of `default` or `kube-system` may need more, and nobody wants to delete these
        with a program.
        """
        name = self._setting.namespace
        if name == "default" or name.startswith("kube-"):
            return []
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": name, "labels": labels}
        return [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}]

    def definitions(self, definitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return definitions that call the program's conversion webhooks."""
        found = []
        for definition in definitions:
            spec = dict(definition["spec"])
            name = definition["metadata"]["name"]
            if self._wanted is not None and name in self._wanted.conversions:
                config = self._wanted.address.client_config(self._wanted.conversions[name])
                spec["conversion"] = {
                    "strategy": "Webhook",
                    "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]},
                }
            found.append({**definition, "spec": spec})
        return found

    def deployment(self) -> dict[str, Any]:
        """Return the Deployment."""
        app, setting = self._app, self._setting
        is_shared = bool(app.lease)
        ports = [{"name": "health", "containerPort": HEALTH_PORT}]
        if self.webhook_port:
            ports.append({"name": "webhooks", "containerPort": self.webhook_port})
        container: dict[str, Any] = {
            "name": "controller",
            "image": setting.image,
            **({"imagePullPolicy": setting.pull_policy} if setting.pull_policy else {}),
            "command": ["listwatch", "run", f"/app/{self._file}"],
            "args": [
                "--log-format=json",
                "--health-host=0.0.0.0",
                f"--health-port={HEALTH_PORT}",
                *setting.arguments,
            ],
            "ports": ports,
            "livenessProbe": _probe("/healthz", 10),
            "readinessProbe": _probe("/readyz", 5),
            "resources": setting.resources,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": app.name, "namespace": setting.namespace},
            "spec": {
                "replicas": setting.replicas,
                # Without an election two programs must never work at the same time.
                **({} if is_shared else {"strategy": {"type": "Recreate"}}),
                "selector": {"matchLabels": self._selector},
                "template": {
                    "metadata": {"labels": self._selector},
                    "spec": {
                        "serviceAccountName": app.name,
                        "terminationGracePeriodSeconds": int(app.grace) + _SPARE,
                        "securityContext": {
                            "runAsNonRoot": True,
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "containers": [container],
                    },
                },
            },
        }

    def services(self) -> list[dict[str, Any]]:
        """Return the Service of the metrics, and that of the webhooks."""
        name = self._app.name
        ports = {name: [_port("metrics", HEALTH_PORT, "health")]}
        address = None if self._wanted is None else self._wanted.address
        if address is not None and address.service:
            hooks = _port("webhooks", address.port, "webhooks")
            ports.setdefault(address.service, []).append(hooks)
        return [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": each, "namespace": self._setting.namespace},
                "spec": {"selector": self._selector, "ports": listed},
            }
            for each, listed in ports.items()
        ]

    def disruption_budget(self) -> dict[str, Any]:
        """Return the PodDisruptionBudget: one pod at a time."""
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": self._app.name, "namespace": self._setting.namespace},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": self._selector}},
        }

    def service_monitor(self) -> dict[str, Any]:
        """Return the ServiceMonitor, for Prometheus' operator."""
        return {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": {"name": self._app.name, "namespace": self._setting.namespace},
            "spec": {
                "selector": {"matchLabels": self._selector},
                "endpoints": [{"port": "metrics", "path": "/metrics"}],
            },
        }

    def webhooks(self) -> list[dict[str, Any]]:
        """Return the webhook configurations, whose authorities the running program sets."""
        if self._wanted is None:
            return []
        made = (self._wanted.configuration(each, None) for each in (MUTATING, VALIDATING))
        # The program takes those with its own label for its own.
        return [{**each, "metadata": {"name": each["metadata"]["name"]}} for each in made if each]


def _probe(path: str, seconds: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "health"}, "periodSeconds": seconds}


def _port(name: str, port: int, target: str) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": target}
