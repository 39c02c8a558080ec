"""The objects that controllers see, and the writes that they request, as data."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from listwatch.apiserver.storage.store import Bucket, Entry, Storage, StoredChange, StoredChangeType
from listwatch.apiserver.workloads.occupancy import Occupancy
from listwatch.clock import Clock

Object = dict[str, Any]
View = Mapping[str, Any]

PODS = "pods"
NODES = "nodes"
SERVICES = "services"
NAMESPACES = "namespaces"
SERVICE_ACCOUNTS = "serviceaccounts"
MAPS = "configmaps"
CLAIMS = "persistentvolumeclaims"
VOLUMES = "persistentvolumes"
ENDPOINTS = "endpoints"
SLICES = "discovery.k8s.io/endpointslices"
DEPLOYMENTS = "apps/deployments"
REPLICA_SETS = "apps/replicasets"
STATEFUL_SETS = "apps/statefulsets"
DAEMON_SETS = "apps/daemonsets"
REVISIONS = "apps/controllerrevisions"
REPLICATION_CONTROLLERS = "replicationcontrollers"
JOBS = "batch/jobs"
CRON_JOBS = "batch/cronjobs"
BUDGETS = "policy/poddisruptionbudgets"
#: Resources whose objects workloads adopt if they have no controller.
_ADOPTED = frozenset((PODS, REPLICA_SETS, REVISIONS, JOBS))
#: Number of pod addresses.
_HOSTS = 65_000


class Create(msgspec.Struct, frozen=True):
    """Create an object; its namespace is in its metadata."""

    resource: str
    obj: Object


class Update(msgspec.Struct, frozen=True):
    """Replace an object, or a subresource of it, if it is still as observed."""

    resource: str
    obj: Object
    subresource: str = ""


class Delete(msgspec.Struct, frozen=True):
    """Delete an observed object.

    Attributes:
        grace: seconds for a pod; None for the pod's own.
        propagation: for its dependents; None for the kind's default.
    """

    resource: str
    obj: View
    grace: int | None = None
    propagation: str | None = None


class Bind(msgspec.Struct, frozen=True):
    """Bind an observed pod to a node."""

    obj: View
    node: str


class Later(msgspec.Struct, frozen=True):
    """Look again after this many seconds, unless a change comes first."""

    seconds: float


#: A controller's writes, in order.
Steps = list[Create | Update | Delete | Bind | Later]


class Observed:
    """The current objects, each state decoded once. For the event loop of the store.

    Its results must not be changed. It follows the store through `note`.
    """

    def __init__(self, store: Storage, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._next_address = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything, before all objects are added again."""
        self._decoded: dict[tuple[str, str], tuple[Entry, View]] = {}
        self._owned: dict[str, dict[tuple[str, str], None]] = {}
        self._on_node: dict[str, dict[str, None]] = {}
        self._orphans: dict[tuple[str, str], dict[str, None]] = {}
        self._unbound: dict[str, None] = {}
        self._addresses: set[str] = set()
        self._entered: dict[str, tuple[str, float]] = {}
        #: the resources in use on each node
        self.occupancy = Occupancy()
        #: the server's first refusal of a write for an object, by uid
        self.refusals: dict[str, str] = {}

    def note(self, bucket: Bucket, change: StoredChange) -> None:
        """Record one change of the store."""
        previous, entry = change.previous, change.entry
        if previous is not None:
            self._forget(bucket.name, previous)
        if change.type is StoredChangeType.DELETED:
            self._decoded.pop((bucket.name, entry.key), None)
            self.refusals.pop(entry.uid, None)
            self._entered.pop(entry.uid, None)
            if bucket.name == PODS:
                self.occupancy.drop(entry.key)
        else:
            self.add(bucket.name, entry)

    def add(self, name: str, entry: Entry) -> None:
        """Record an existing object."""
        for owner in entry.owners:
            self._owned.setdefault(owner, {})[name, entry.key] = None
        if name in _ADOPTED and not (entry.owners and controller_of(self.view(name, entry))):
            self._orphans.setdefault((name, entry.namespace), {})[entry.key] = None
        if name == PODS:
            self._add_pod(entry)

    def _add_pod(self, entry: Entry) -> None:
        node, address = entry.fields.get("spec.nodeName"), entry.fields.get("status.podIP")
        if node:
            self._on_node.setdefault(node, {})[entry.key] = None
            self.occupancy.put(entry.key, self.view(PODS, entry))
        else:
            self._unbound[entry.key] = None
        if address:
            self._addresses.add(address)

    def _forget(self, name: str, entry: Entry) -> None:
        for owner in entry.owners:
            owned = self._owned.get(owner, {})
            owned.pop((name, entry.key), None)
            if not owned:
                self._owned.pop(owner, None)
        orphans = self._orphans.get((name, entry.namespace))
        if orphans is not None:
            orphans.pop(entry.key, None)
        if name == PODS:
            node = entry.fields.get("spec.nodeName", "")
            if node in self._on_node:
                self._on_node[node].pop(entry.key, None)
            self._unbound.pop(entry.key, None)
            self._addresses.discard(entry.fields.get("status.podIP", ""))

    # -- objects -----------------------------------------------------------------------------

    def view(self, resource: str, entry: Entry) -> View:
        """Return a state of an object."""
        key = resource, entry.key
        known = self._decoded.get(key)
        if known is not None and known[0] is entry:
            return known[1]
        obj: View = msgspec.json.decode(entry.data)
        if self._store.bucket(resource).entries.get(entry.key) is entry:
            self._decoded[key] = entry, obj
        return obj

    def at(self, resource: str, key: str) -> View | None:
        """Return the object under a key of the store, or None."""
        entry = self._store.bucket(resource).entries.get(key)
        return None if entry is None else self.view(resource, entry)

    def find(self, resource: str, namespace: str, name: str) -> View | None:
        """Return an object, or None."""
        return self.at(resource, f"{namespace}/{name}" if namespace else name)

    def objects(self, resource: str, namespace: str = "") -> list[View]:
        """Return all objects of a resource, or those of a namespace, by name."""
        bucket = self._store.bucket(resource)
        return [self.view(resource, entry) for entry in bucket.current(namespace)]

    def entries(self, resource: str, namespace: str = "") -> Iterable[Entry]:
        """Yield what `objects` returns, in the stored form: enough for names and labels."""
        return self._store.bucket(resource).span(namespace)

    def orphans(self, resource: str, namespace: str) -> list[View]:
        """Return the objects of a namespace without a controller, by name."""
        keys = sorted(self._orphans.get((resource, namespace), ()))
        return [view for view in (self.at(resource, key) for key in keys) if view is not None]

    def controlled(self, owner: View, resource: str) -> list[View]:
        """Return the objects of a resource that an object controls, by name."""
        uid = owner["metadata"]["uid"]
        found = [key for name, key in self._owned.get(uid, ()) if name == resource]
        views = (self.at(resource, key) for key in sorted(found))
        return [view for view in views if view is not None and controller_uid(view) == uid]

    def pods_on(self, node: str) -> list[View]:
        """Return the pods bound to a node."""
        views = (self.at(PODS, key) for key in sorted(self._on_node.get(node, ())))
        return [view for view in views if view is not None]

    def unbound(self) -> list[str]:
        """Return the keys of the pods without a node."""
        return list(self._unbound)

    def free_address(self) -> str:
        """Return an address that no pod has."""
        for _ in range(_HOSTS):
            self._next_address = self._next_address % _HOSTS + 1
            address = f"10.244.{self._next_address >> 8}.{self._next_address & 255}"
            if address not in self._addresses:
                return address
        return "10.245.0.1"  # more pods than addresses: they share one

    # -- time --------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock.time()

    @property
    def stamp(self) -> str:
        """The timestamp of this second."""
        return datetime.fromtimestamp(int(self.now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def elapsed(self, uid: str, state: str) -> float:
        """Return the seconds since an object was first seen in a state."""
        known = self._entered.get(uid)
        now = self._clock.now()
        if known is None or known[0] != state:
            known = self._entered[uid] = state, now
        return now - known[1]

    def since(self, stamp: str | None) -> float:
        """Return the seconds since a timestamp; 0 without one."""
        return 0.0 if not stamp else self.now - datetime.fromisoformat(stamp).timestamp()


def controller_of(obj: View) -> View | None:
    """Return the reference to the object that controls this one, or None."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            found: View = reference
            return found
    return None


def controller_uid(obj: View) -> str:
    """Return the uid of the object that controls this one, or ""."""
    reference = controller_of(obj)
    return "" if reference is None else str(reference.get("uid", ""))


def owner_reference(api_version: str, kind: str, owner: View) -> Object:
    """Return a reference to a controlling owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def changed(obj: View, **parts: Any) -> Object:
    """Return an object with some top-level parts replaced."""
    return {**obj, **parts}


def with_metadata(obj: View, **parts: Any) -> Object:
    """Return an object with parts of its metadata replaced; None removes a part."""
    metadata = {**obj["metadata"], **parts}
    return {**obj, "metadata": {key: value for key, value in metadata.items() if value is not None}}


def without_finalizer(resource: str, obj: View, name: str) -> Steps:
    """Return the removal of a finalizer, if an object has it."""
    finalizers = obj["metadata"].get("finalizers") or []
    if name not in finalizers:
        return []
    left = [each for each in finalizers if each != name]
    return [Update(resource, with_metadata(obj, finalizers=left or None))]


def condition(obj: View, kind: str) -> View | None:
    """Return a condition of an object's status, or None."""
    for each in (obj.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind:
            found: View = each
            return found
    return None


def is_true(obj: View, kind: str) -> bool:
    """Return whether a condition of an object's status is True."""
    found = condition(obj, kind)
    return found is not None and found.get("status") == "True"


def with_condition(conditions: Iterable[View], new: Object) -> list[View]:
    """Return conditions with a new one replacing the old one of its type.

    The last transition time stays as long as the status does.
    """
    result: list[View] = []
    placed = False
    for each in conditions:
        if each.get("type") != new["type"]:
            result.append(each)
            continue
        placed = True
        if each.get("status") == new["status"] and each.get("lastTransitionTime"):
            new = {**new, "lastTransitionTime": each["lastTransitionTime"]}
        result.append(new)
    return result if placed else [*result, new]
