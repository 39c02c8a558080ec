"""Creates or updates the definition of types on a server."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from listwatch.errors import AlreadyExistsError, ListWatchError
from listwatch.objects import Object
from listwatch.resources.custom_resource import definition

if TYPE_CHECKING:
    from listwatch.client.client import Client

_DEFINITIONS: Final = "customresourcedefinitions.v1.apiextensions.k8s.io"


class InstallError(ListWatchError):
    """A definition conflicts with what the server has; the message says what to do."""


async def install(client: "Client", *types: type, seconds: float = 30.0) -> Object:
    """Create the CustomResourceDefinition of types, or update it, and wait until it is served.

    An existing conversion, labels and annotations stay.

    Args:
        client: sends the requests.
        types: one type, or several versions of one; see `definition`.
        seconds: time limit of the wait.

    Returns:
        The definition on the server.

    Raises:
        InstallError: the name, the plural or another name is taken; the scope differs; objects may
            be stored in a version that the types lack.
        ResourceTypeError: the types don't belong together.
        TimeoutError: the definition is not served within the time limit.
        StatusError: the server refuses it.
    """
    manifest = definition(*types)
    name: str = manifest["metadata"]["name"]
    try:
        await client.create(manifest)
    except AlreadyExistsError:

        def change(value: dict[str, Any]) -> None:
            _check(name, value, manifest["spec"])
            value["spec"] = {**manifest["spec"], **_kept(value["spec"])}

        await client.update_existing(_DEFINITIONS, name, change)
    found = await client.wait_for(_DEFINITIONS, name, _is_decided, seconds=seconds)
    conditions = _conditions(found)
    names = conditions.get("NamesAccepted") or {}
    if names.get("status") == "False":
        raise InstallError(
            f"{name}: {names.get('message') or 'a name is taken'}: choose other names, or delete "
            "the definition that has them"
        )
    return found


def _kept(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"conversion": spec["conversion"]} if "conversion" in spec else {}


def _check(name: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    spec = there["spec"]
    kind, scope = spec["names"]["kind"], spec["scope"]
    if kind != wanted["names"]["kind"]:
        raise InstallError(
            f"{name}: the plural is taken by the kind {kind}: give {wanted['names']['kind']} "
            "another plural= or group"
        )
    if scope != wanted["scope"]:
        raise InstallError(
            f"{name}: the scope is {scope} and can't become {wanted['scope']}: delete the "
            "definition, and with it all objects, or choose another group or plural="
        )
    stored = (there.get("status") or {}).get("storedVersions") or ()
    lacking = [one for one in stored if one not in {v["name"] for v in wanted["versions"]}]
    if lacking:
        raise InstallError(
            f"{name}: objects may be stored in {', '.join(lacking)}, which the types lack: run "
            f"`listwatch migrate {name}` before you remove a version"
        )


def _is_decided(crd: Object) -> bool:
    conditions = _conditions(crd)
    return (
        conditions.get("Established", {}).get("status") == "True"
        or conditions.get("NamesAccepted", {}).get("status") == "False"
    )


def _conditions(crd: Object) -> dict[str, Mapping[str, Any]]:
    status = crd.to_dict().get("status") or {}
    return {one["type"]: one for one in status.get("conditions") or ()}
