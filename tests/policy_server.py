"""A server with a test's admission policies."""

from typing import Any

from api_client import CORE, Client
from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.admission.chain import Mutator, Validator
from listwatch.apiserver.admission.matching import Attributes

GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = f"{CORE}/configmaps"
MERGE = {"Content-Type": "application/merge-patch+json"}
ALL_MAPS = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["*"],
            "resources": ["configmaps"],
        }
    ]
}
#: The kind of parameters in most tests.
OF_MAPS = {"apiVersion": "v1", "kind": "ConfigMap"}


class Noted:
    """Record the audit annotations of each request."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []

    def mutator(self) -> Mutator | None:
        return None

    def validator(self) -> Validator:
        return self

    def validate(self, attributes: Attributes) -> None:
        self.seen.append(attributes.annotations)


class Policies:
    """A server and its policies."""

    def __init__(self, server: EmbeddedAPIServer, client: Client) -> None:
        self.client = client
        self.noted = Noted()
        server.admission.append(self.noted)
        self._number = 0

    async def validate(self, *validations: Any, **parts: Any) -> None:
        """Create a validating policy and a binding; a validation may be just an expression."""
        spec = {
            "matchConstraints": ALL_MAPS,
            "validations": [
                {"expression": each} if isinstance(each, str) else each for each in validations
            ],
        }
        binding = {"validationActions": ["Deny"]}
        await self._make("validating", spec, binding, parts)

    async def mutate(self, *mutations: Any, **parts: Any) -> None:
        """Create a mutating policy and a binding; an expression in brackets is a JSON patch."""
        spec = {
            "matchConstraints": {
                "resourceRules": [
                    {**ALL_MAPS["resourceRules"][0], "operations": ["CREATE", "UPDATE"]}
                ]
            },
            "reinvocationPolicy": "Never",
            "mutations": [
                {"patchType": "JSONPatch", "jsonPatch": {"expression": each}}
                if each.startswith("[")
                else {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": each},
                }
                for each in mutations
            ],
        }
        await self._make("mutating", spec, {}, parts)

    async def _make(self, kind: str, spec: Any, binding: Any, parts: Any) -> None:
        self._number += 1
        name = parts.pop("name", f"p{self._number}")
        bound = {"policyName": name, **binding, **parts.pop("binding", {})}
        await self.client.create(f"{GROUP}/{kind}admissionpolicies", name, spec={**spec, **parts})
        await self.client.create(f"{GROUP}/{kind}admissionpolicybindings", f"b-{name}", spec=bound)

    async def refused(self, name: str = "a", *, code: int = 422, **fields: Any) -> str:
        """Try to create a ConfigMap, and return the reason for its refusal."""
        body = {"metadata": {"name": name}, **fields}
        status = await self.client.call("POST", MAPS, body, expect=code)
        assert status["details"]["causes"][0]["message"] in status["message"]
        message: str = status["message"]
        return message.partition(" denied request: ")[2]

    async def made(self, name: str = "a", **fields: Any) -> Any:
        """Create a ConfigMap."""
        return await self.client.create(MAPS, name, **fields)
