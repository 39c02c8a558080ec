"""Performs the controllers' writes, by the same rules as clients' writes, including admission."""

from typing import Protocol

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.admission.chain import Admission
from listwatch.apiserver.kinds.catalog import apply_defaults
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.kinds.table import ResourceTable
from listwatch.apiserver.storage.deletion import DeleteOptions, delete
from listwatch.apiserver.storage.registry import Registry, WriteContext
from listwatch.apiserver.storage.store import Entry
from listwatch.apiserver.user import User
from listwatch.apiserver.webhooks.consultation import Consultation
from listwatch.apiserver.workloads.events import COMPONENTS, Told, events_of, refusal_of
from listwatch.apiserver.workloads.observed import (
    PODS,
    Bind,
    Create,
    Delete,
    Later,
    Object,
    Steps,
    Update,
)
from listwatch.apiserver.workloads.recorder import Recorder
from listwatch.clock import Clock
from listwatch.errors import StatusError

_AUTHENTICATED = "system:authenticated"
_ACCOUNTS = ("system:serviceaccounts", "system:serviceaccounts:kube-system", _AUTHENTICATED)


class Admit(Protocol):
    """Returns the admission of a write by the server itself; None if there is none."""

    def __call__(
        self, user: User, resource: APIResource, namespace: str, name: str, subresource: str
    ) -> Admission | None:
        """Return the policies and webhooks."""


class Writes:
    """Writes to the store for controllers. For the event loop of the store.

    Args:
        registry: used to write.
        table: the served resources.
        clock: times webhooks.
        admit: returns the admission of a write.
    """

    def __init__(
        self,
        registry: Registry,
        table: ResourceTable,
        clock: Clock,
        admit: Admit,
    ) -> None:
        self._registry = registry
        self._table = table
        self._clock = clock
        self._admit = admit
        self._recorder = Recorder(registry, self._resource("events"), clock)
        #: the versions that the current plan has written
        self._written: dict[tuple[str, str], int] = {}

    async def perform(self, steps: Steps, manager: str, controller: str) -> StatusError | None:
        """Perform a controller's steps in order; return the server's first refusal.

        After a refusal only statuses are still written. Other tasks run in between only during a
        webhook call.

        Args:
            steps: the steps.
            manager: owner of the written fields.
            controller: whose service account is used, if the program has one for each.
        """
        self._written.clear()
        user = _user(manager, controller)
        refused: StatusError | None = None
        for step in steps:
            if isinstance(step, Later):
                continue
            if refused is not None and not (isinstance(step, Update) and step.subresource):
                continue
            try:
                events = await self._consulted(step, manager, user)
            except StatusError as error:
                refused = refused or error
                events = refusal_of(step, error.message)
            self._tell(events, step, manager, controller)
        return refused

    def _tell(
        self,
        events: list[Told],
        step: Create | Update | Delete | Bind,
        manager: str,
        controller: str,
    ) -> None:
        if manager == "kube-scheduler":
            component = "default-scheduler"
        else:
            component = COMPONENTS.get(controller, controller) or manager
        host = step.obj.get("spec", {}).get("nodeName", "") if manager == "kubelet" else ""
        for event in events:
            self._recorder.tell(event, component, host)

    async def _consulted(
        self, step: Create | Update | Delete | Bind, manager: str, user: User
    ) -> list[Told]:
        async def attempt() -> list[Told]:
            return self._do(step, manager, user)

        return await Consultation(self._clock).settle(attempt)

    def _do(self, step: Create | Update | Delete | Bind, manager: str, user: User) -> list[Told]:
        """Perform a step, and return the events that tell of it."""
        made, before = "", None
        if isinstance(step, Create):
            made = self._create(step, manager, user)
        elif isinstance(step, Update):
            before = self._update(step, manager, user)
        elif isinstance(step, Bind):
            pods = self._resource(PODS)
            metadata = step.obj["metadata"]
            entry = self._registry.get(pods, metadata["namespace"], metadata["name"])
            self._registry.bind(pods, entry, step.node)
        else:
            metadata = step.obj["metadata"]
            resource = self._resource(step.resource)
            namespace, name = metadata.get("namespace", ""), metadata["name"]
            options = DeleteOptions(
                grace_period=step.grace,
                propagation=step.propagation,
                uid=metadata["uid"],
                admission=self._admit(user, resource, namespace, name, ""),
            )
            delete(self._registry, resource, namespace, name, options)
        return events_of(step, made, before, manager)

    def make(self, step: Create, manager: str) -> None:
        """Create one of the server's own objects, without admission."""
        resource = self._resource(step.resource)
        obj = _copied(step.obj)
        apply_defaults(resource, obj)
        self._registry.create(resource, "", obj, WriteContext(manager=manager))

    def _create(self, step: Create, manager: str, user: User) -> str:
        resource = self._resource(step.resource)
        obj = _copied(step.obj)
        apply_defaults(resource, obj)
        namespace = obj["metadata"].get("namespace", "")
        admission = self._admit(user, resource, namespace, obj["metadata"].get("name", ""), "")
        context = WriteContext(manager=manager, admission=admission)
        return self._registry.create(resource, namespace, obj, context).name

    def _update(self, step: Update, manager: str, user: User) -> Object | None:
        """Perform an update; return the object before it."""
        resource = self._resource(step.resource)
        metadata = step.obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        place = step.resource, f"{namespace}/{name}"

        before: list[Object | None] = []

        def produce(old: Object | None, entry: Entry | None) -> Object:
            before[:] = [old]
            if entry is not None and (
                entry.uid != metadata["uid"]
                or entry.revision
                not in {int(metadata["resourceVersion"]), self._written.get(place)}
            ):
                raise refusal.conflict(resource, name)
            new = _copied(step.obj)
            # as checked above, only this plan has written it since
            new["metadata"].pop("resourceVersion", None)
            return new

        context = WriteContext(
            manager=manager,
            subresource=step.subresource,
            admission=self._admit(user, resource, namespace, name, step.subresource),
        )
        entry, _ = self._registry.update(resource, namespace, name, produce, context, is_put=False)
        self._written[place] = entry.revision
        return before[-1]

    def _resource(self, storage: str) -> APIResource:
        group, _, name = storage.rpartition("/")
        resource = self._table.get(group, "v1", name)
        if resource is None:
            raise LookupError(f"the schema facts in the package have no {storage}")
        return resource


def _user(manager: str, controller: str) -> User:
    """Return the user of a program, as policies and webhooks see it."""
    if manager == "kube-controller-manager":
        return User(f"system:serviceaccount:kube-system:{controller}", _ACCOUNTS)
    if manager == "kubelet":
        return User("system:node", ("system:nodes", _AUTHENTICATED))
    return User(f"system:{manager}", (_AUTHENTICATED,))


def _copied(obj: Object) -> Object:
    """Return a copy that shares nothing with the observed objects."""
    copied: Object = msgspec.json.decode(msgspec.json.encode(obj))
    return copied
