"""The server's objects as invariants see them, and end states made comparable."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from listwatch.apiserver.storage.store import Storage

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

#: Resources whose changes are not the controllers' work on the cluster.
QUIET: Final = frozenset({"coordination.k8s.io/leases", "events", "events.k8s.io/events"})
#: Fields of the metadata that no two runs share.
_METADATA: Final = frozenset(
    {
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "managedFields",
        "selfLink",
        "generateName",
    }
)
#: Fields given by the server or the nodes.
_GIVEN: Final = frozenset(
    {"nodeName", "podIP", "podIPs", "hostIP", "hostIPs", "clusterIP", "clusterIPs", "containerID"}
)


class State:
    """The server's objects at one time, for invariants; decoded on access.

    Args:
        store: the server's.
    """

    def __init__(self, store: Storage) -> None:
        self._store = store

    @property
    def revision(self) -> int:
        """The server's revision."""
        return self._store.revision

    def list(self, resource: str, namespace: str = "", *, since: int = 0) -> list[dict[str, Any]]:
        """Return the objects of a resource, such as "pods" or "deployments.apps".

        Args:
            resource: the plural name, with the group if there is one.
            namespace: "" for all.
            since: only those changed after this revision.
        """
        bucket = self._store.bucket(bucket_of(resource))
        return [
            msgspec.json.decode(entry.data)
            for entry in bucket.current(namespace)
            if entry.revision > since
        ]

    def uids(self) -> set[str]:
        """Return the uids of all objects."""
        buckets = self._store.buckets()
        return {entry.uid for bucket in buckets for entry in bucket.entries.values()}

    def get(self, resource: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return an object, or None if there is none."""
        key = f"{namespace}/{name}" if namespace else name
        entry = self._store.bucket(bucket_of(resource)).entries.get(key)
        return None if entry is None else msgspec.json.decode(entry.data)

    def resources(self) -> Iterable[str]:
        """Return the names of the resources that have objects, with their groups."""
        for bucket in self._store.buckets():
            if bucket.entries:
                yield resource_of(bucket.name)


def bucket_of(resource: str) -> str:
    """Return the store's name of a resource such as "deployments.apps"."""
    name, _, group = resource.partition(".")
    return f"{group}/{name}" if group else name


def resource_of(bucket: str) -> str:
    """Return the name of a resource that the store calls by another."""
    group, _, name = bucket.rpartition("/")
    return f"{name}.{group}" if group else name


class Mask:
    """What the comparison of end states leaves out, besides uids, versions, times and the like.

    Args:
        paths: JSON paths of the form "RESOURCE: a.b[*].c", or "a.b" for all resources; "RESOURCE:"
            alone leaves the whole resource out.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._paths: list[tuple[str, tuple[str, ...]]] = []
        self.resources: set[str] = set()
        for path in paths:
            resource, colon, rest = path.partition(":")
            if not colon:
                resource, rest = "", path
            parts = tuple(part for part in re.split(r"[.\[\]]+", rest.strip()) if part)
            if parts:
                self._paths.append((resource.strip(), parts))
            else:
                self.resources.add(resource.strip())

    def apply(self, resource: str, obj: dict[str, Any]) -> None:
        """Remove the masked fields of an object."""
        for wanted, parts in self._paths:
            if wanted in {"", resource}:
                _remove(obj, parts)


def _remove(value: Any, parts: tuple[str, ...]) -> None:
    first, rest = parts[0], parts[1:]
    places: Iterable[Any]
    if isinstance(value, dict):
        places = list(value) if first == "*" else [first] * (first in value)
    elif isinstance(value, list):
        places = range(len(value)) if first == "*" else ()
    else:
        return
    for place in places:
        if rest:
            _remove(value[place], rest)
        elif isinstance(value, dict):
            del value[place]


#: An object's resource, namespace and name, with its generated part replaced.
Place = tuple[str, str, str]


def end_state(store: Storage, base: int, mask: Mask) -> "EndState":
    """Return all objects, made comparable.

    Args:
        store: the server's.
        base: the revision of the beginning; objects unchanged since are only named.
        mask: what to leave out.
    """
    found = EndState()
    changed: list[tuple[str, dict[str, Any]]] = []
    names: dict[str, str] = {}
    for bucket in store.buckets():
        if bucket.name in QUIET or not bucket.entries:
            continue
        resource = resource_of(bucket.name)
        if resource in mask.resources:
            continue
        for entry in bucket.current():
            if entry.revision <= base:
                found[resource, entry.namespace, entry.name] = Counter({"unchanged": 1})
                continue
            obj = msgspec.json.decode(entry.data)
            changed.append((resource, obj))
            prefix = obj["metadata"].get("generateName")
            if prefix and entry.name.startswith(prefix):
                names[entry.name] = f"{prefix}*"
    for resource, obj in changed:
        metadata = obj["metadata"]
        name = metadata["name"]
        place = (resource, metadata.get("namespace", ""), names.get(name, name))
        mask.apply(resource, obj)
        text = json.dumps(_masked(obj, names, metadata.get("generation")), sort_keys=True)
        found.setdefault(place, Counter())[text] += 1
    return found


def _masked(value: Any, names: Mapping[str, str], generation: object, field: str = "") -> Any:
    if isinstance(value, dict):
        result = {}
        for key, item in value.items():
            if (field == "metadata" and key in _METADATA) or key in _GIVEN:
                if key == "deletionTimestamp":
                    result[key] = "TIME"
                continue
            if key == "observedGeneration":
                result[key] = "current" if item == generation else "old"
                continue
            if key == "uid":
                continue
            result[key] = _masked(item, names, generation, key)
        return result
    if isinstance(value, list):
        return [_masked(item, names, generation) for item in value]
    if isinstance(value, str):
        if value in names:
            return names[value]
        return _UID.sub("UID", _TIME.sub("TIME", value))
    return value


class EndState(dict[Place, Counter[str]]):
    """The objects of an end state: how many of each content there are at each place."""

    def differences(self, other: "EndState", *, limit: int = 12) -> list[str]:
        """Return what this state has otherwise than another, which is the right one."""
        lines: list[str] = []
        for place in sorted(self.keys() | other.keys()):
            mine, theirs = self.get(place, Counter()), other.get(place, Counter())
            if mine == theirs:
                continue
            resource, namespace, name = place
            where = f"{resource} {namespace}/{name}" if namespace else f"{resource} {name}"
            count, wanted = mine.total(), theirs.total()
            if not wanted:
                lines.append(f"+ {where}: {_number(count)} too many")
            elif not count:
                lines.append(f"- {where}: missing")
            elif count != wanted:
                lines.append(f"! {where}: {count} instead of {wanted}")
            else:
                pairs = zip((mine - theirs).elements(), (theirs - mine).elements(), strict=True)
                for got, right in pairs:
                    if "unchanged" in {got, right}:
                        what = "is unchanged" if got == "unchanged" else "has changed"
                        lines.append(f"! {where}: it {what} since the start")
                        continue
                    lines += [
                        f"! {where}: {line}"
                        for line in _changes(json.loads(got), json.loads(right), "")
                    ]
        more = len(lines) - limit
        return [*lines[:limit], f"… and {more} more"] if more > 0 else lines


def _number(count: int) -> str:
    return "one" if count == 1 else str(count)


def _changes(got: Any, right: Any, path: str) -> Iterable[str]:
    if isinstance(got, dict) and isinstance(right, dict):
        for key in sorted(got.keys() | right.keys()):
            if got.get(key) != right.get(key):
                yield from _changes(got.get(key), right.get(key), f"{path}.{key}" if path else key)
    elif isinstance(got, list) and isinstance(right, list) and len(got) == len(right):
        for number, (one, two) in enumerate(zip(got, right, strict=True)):
            if one != two:
                yield from _changes(one, two, f"{path}[{number}]")
    else:
        yield f"{path} is {_short(got)}, not {_short(right)}"


def _short(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
