"""The webhook configurations in the cluster: what is published, and what should be.

A configuration that this program made is kept as the program declares it. In one that a manifest
made, only the authorities are kept, and so in the conversions of CustomResourceDefinitions.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from listwatch.client.typed_objects import is_same
from listwatch.errors import ConflictError, NotFoundError
from listwatch.objects import Object
from listwatch.webhooks.certificates import (
    Authority,
    CertificateError,
    as_bundle,
    read_authorities,
)
from listwatch.webhooks.hooks import AdmissionHook

if TYPE_CHECKING:
    from listwatch.client.client import Client

GROUP: Final = "admissionregistration.k8s.io"
DEFINITIONS: Final = "customresourcedefinitions.apiextensions.k8s.io"
VALIDATING: Final = "validatingwebhookconfigurations"
MUTATING: Final = "mutatingwebhookconfigurations"
_KINDS: Final = {
    VALIDATING: "ValidatingWebhookConfiguration",
    MUTATING: "MutatingWebhookConfiguration",
}
_LABELS: Final = {"app.kubernetes.io/managed-by": "listwatch"}


class Address(msgspec.Struct, frozen=True):
    """Where the API server reaches webhooks.

    Attributes:
        url: such as "https://127.0.0.1:9443"; empty for a service.
        namespace: of the service.
        service: its name.
        port: of the service.
    """

    url: str = ""
    namespace: str = ""
    service: str = ""
    port: int = 443

    def client_config(self, path: str, bundle: bytes | None = None) -> dict[str, Any]:
        """Return a `clientConfig` for a path.

        Args:
            path: of a hook.
            bundle: authorities in PEM; None to leave them to others.
        """
        made: dict[str, Any]
        if self.url:
            made = {"url": f"{self.url}{path}"}
        else:
            made = {
                "service": {
                    "namespace": self.namespace,
                    "name": self.service,
                    "path": path,
                    "port": self.port,
                }
            }
        if bundle is not None:
            made["caBundle"] = base64.b64encode(bundle).decode()
        return made


class Wanted(msgspec.Struct, frozen=True):
    """What should be published.

    Attributes:
        name: of both configurations.
        hooks: the admission hooks.
        conversions: paths of the hooks that convert, by the name of their definition.
        address: of the server.
        excluded: namespaces whose objects the hooks do not get.
        creates: create and change configurations; otherwise only set authorities.
    """

    name: str
    hooks: Sequence[AdmissionHook[Any]]
    conversions: Mapping[str, str]
    address: Address
    excluded: Sequence[str] = ()
    creates: bool = True

    def configuration(self, resource: str, bundle: bytes | None) -> dict[str, Any] | None:
        """Return one of the two configurations; None if it has no hooks."""
        hooks = [hook for hook in self.hooks if hook.mutating == (resource == MUTATING)]
        if not hooks:
            return None
        return {
            "apiVersion": f"{GROUP}/v1",
            "kind": _KINDS[resource],
            "metadata": {"name": self.name, "labels": dict(_LABELS)},
            "webhooks": [
                hook.manifest(self.address.client_config(hook.path, bundle), self.excluded)
                for hook in hooks
            ],
        }


class Published(msgspec.Struct, frozen=True):
    """What is published, as it was read.

    Attributes:
        configurations: by resource; None where there is none.
        definitions: by name, those that exist.
    """

    configurations: Mapping[str, Object | None]
    definitions: Mapping[str, Object]

    def bundles(self, wanted: Wanted) -> list[tuple[Authority, ...]]:
        """Return the authorities of each published webhook of ours, in any order.

        What is no certificate counts as none.
        """
        names = {hook.full_name for hook in wanted.hooks}
        configs = [
            webhook.get("clientConfig") or {}
            for found in self.configurations.values()
            if found is not None
            for webhook in found.get("webhooks") or ()
            if webhook.get("name") in names
        ]
        for name, path in wanted.conversions.items():
            if name in self.definitions:
                config = _conversion(self.definitions[name])
                if config is not None and is_ours(config, wanted.address, path):
                    configs.append(config)
        return [authorities_of(config) for config in configs]


def authorities_of(config: Mapping[str, Any]) -> tuple[Authority, ...]:
    """Return the authorities of a `clientConfig`; none if they are no certificates."""
    try:
        return read_authorities(base64.b64decode(config.get("caBundle") or ""))
    except (CertificateError, binascii.Error, ValueError):
        return ()


def is_ours(config: Mapping[str, Any], address: Address, path: str) -> bool:
    """Return whether a `clientConfig` leads to an address and path."""
    rest = {key: value for key, value in config.items() if key != "caBundle"}
    return _has(rest, address.client_config(path))


class Registrar:
    """Reads and writes what is published. Its methods raise what the client raises.

    Args:
        client: sends the requests.
        wanted: what should be published.
    """

    def __init__(self, client: "Client", wanted: Wanted) -> None:
        self._client = client
        self.wanted = wanted

    async def read(self) -> Published:
        """Return what is published."""
        configurations = {
            resource: await _get(self._client, f"{resource}.{GROUP}", self.wanted.name)
            for resource in _KINDS
        }
        definitions = {
            name: await _get(self._client, DEFINITIONS, name) for name in self.wanted.conversions
        }
        return Published(
            configurations, {name: obj for name, obj in definitions.items() if obj is not None}
        )

    def changes(
        self, published: Published, authorities: Iterable[Authority] | None
    ) -> list[tuple[str, Object | None, dict[str, Any] | None]]:
        """Return each resource with what is published and what is to replace it.

        Args:
            published: as it was read.
            authorities: to be trusted; None to leave that to others.
        """
        bundle = None if authorities is None else as_bundle(authorities)
        found: list[tuple[str, Object | None, dict[str, Any] | None]] = []
        for resource, before in published.configurations.items():
            after = self._configuration(resource, before, bundle)
            if before is None and after is None:
                continue
            if before is None or after is None or not _has(before.to_dict(), after):
                found.append((f"{resource}.{GROUP}", before, after))
        for name, before in published.definitions.items():
            config = self.wanted.address.client_config(self.wanted.conversions[name], bundle)
            conversion = {
                "strategy": "Webhook",
                "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]},
            }
            spec = before.to_dict()["spec"]
            if not _has(spec.get("conversion") or {}, conversion):
                after = {**before.to_dict(), "spec": {**spec, "conversion": conversion}}
                found.append((DEFINITIONS, before, after))
        return found

    def _configuration(
        self, resource: str, before: Object | None, bundle: bytes | None
    ) -> dict[str, Any] | None:
        """Return the configuration that should be there; None for none."""
        if before is None:
            return self.wanted.configuration(resource, bundle) if self.wanted.creates else None
        value = before.to_dict()
        if self.wanted.creates and _has(value["metadata"].get("labels") or {}, _LABELS):
            made = self.wanted.configuration(resource, bundle)
            return None if made is None else {**value, "webhooks": made["webhooks"]}
        return value if bundle is None else self._with_bundle(value, bundle)

    def _with_bundle(self, value: dict[str, Any], bundle: bytes) -> dict[str, Any]:
        names = {hook.full_name for hook in self.wanted.hooks}
        text = base64.b64encode(bundle).decode()
        webhooks = [
            {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": text}}
            if webhook.get("name") in names
            else webhook
            for webhook in value.get("webhooks") or ()
        ]
        return {**value, "webhooks": webhooks}

    async def publish(self, published: Published, authorities: Iterable[Authority] | None) -> int:
        """Publish what should be; return the number of changes.

        Raises:
            ConflictError: somebody else changed something since it was read.
        """
        changes = self.changes(published, authorities)
        for resource, before, after in changes:
            if before is None and after is not None:
                await self._client.create(after, resource=resource)
            elif after is not None:
                await self._client.update(after, resource=resource)
            elif before is not None:
                await _delete(self._client, resource, before)
        return len(changes)

    async def remove(self) -> int:
        """Remove the configurations that this program made; return how many there were."""
        return await remove_configurations(self._client, self.wanted.name)


async def remove_configurations(client: "Client", name: str) -> int:
    """Remove the configurations that a manager made; return how many there were.

    Args:
        client: sends the requests, and raises what it raises.
        name: the manager's name.
    """
    removed = 0
    for resource in _KINDS:
        found = await _get(client, f"{resource}.{GROUP}", name)
        if found is not None and _has(dict(found.labels), _LABELS):
            await _delete(client, f"{resource}.{GROUP}", found)
            removed += 1
    return removed


async def _get(client: "Client", resource: str, name: str) -> Object | None:
    try:
        return await client.get(resource, name)
    except NotFoundError:
        return None


async def _delete(client: "Client", resource: str, obj: Object) -> None:
    try:
        await client.delete(resource, obj.name, uid=obj.uid)
    except (NotFoundError, ConflictError):
        return  # it is gone, or another one has its name


def _conversion(definition: Object) -> Mapping[str, Any] | None:
    conversion = definition["spec"].get("conversion") or {}
    if conversion.get("strategy") != "Webhook":
        return None
    config: Mapping[str, Any] = conversion["webhook"].get("clientConfig") or {}
    return config


def _has(value: Any, wanted: Any) -> bool:
    """Return whether a value has all wanted fields; a server may have added others."""
    if isinstance(wanted, Mapping) and isinstance(value, Mapping):
        return all(key in value and _has(value[key], one) for key, one in wanted.items())
    if isinstance(wanted, list) and isinstance(value, Sequence) and not isinstance(value, str):
        return len(value) == len(wanted) and all(map(_has, value, wanted))
    return is_same(value, wanted)
