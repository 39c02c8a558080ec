"""Create and update: from a validated object to a committed state."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from listwatch.apiserver import refusal
from listwatch.apiserver.admission import plugins
from listwatch.apiserver.admission.advice import advice, single_owners
from listwatch.apiserver.admission.chain import Admission
from listwatch.apiserver.admission.quota import charge
from listwatch.apiserver.admission.security import secure
from listwatch.apiserver.admission.validation import validate_create, validate_update
from listwatch.apiserver.kinds.addresses import Addresses
from listwatch.apiserver.kinds.catalog import (
    apply_defaults,
    kind_of,
    spec_changed,
)
from listwatch.apiserver.kinds.kind import carry
from listwatch.apiserver.kinds.resources import APIResource
from listwatch.apiserver.storage.carrying import carry_metadata, keep_status_only, reset_fields
from listwatch.apiserver.storage.field_sets import created_fields
from listwatch.apiserver.storage.managed_fields import Managed, Owner
from listwatch.apiserver.storage.objects import StoredObjects
from listwatch.apiserver.storage.preconditions import (
    asked_version,
    check_conditions,
    takes_version,
)
from listwatch.apiserver.storage.store import Entry, Storage
from listwatch.apiserver.webhooks.consultation import drawn
from listwatch.clock import Clock
from listwatch.schema.causes import Cause
from listwatch.schema.copying import copy_of
from listwatch.schema.facts import ANY

Object = dict[str, Any]

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


class WriteContext(msgspec.Struct, frozen=True):
    """The context of a write.

    Attributes:
        manager: owner of the written fields.
        dry_run: do everything except storing.
        subresource: the subresource that is written; "" for the object.
        operation: "Apply" or "Update", for managedFields.
        guard: gets the resource, the new and the old object (None if there is none); raises the
            refusal of the write.
        warnings: receives warnings for the client, if given.
        admission: the policies and webhooks to ask, if any.
    """

    manager: str = ""
    dry_run: bool = False
    subresource: str = ""
    operation: str = "Update"
    guard: Callable[[APIResource, Object, Object | None], None] | None = None
    warnings: list[str] | None = None
    admission: Admission | None = None


class Registry(StoredObjects):
    """The rules between requests and the store. Like the store: one event loop, no awaits."""

    def __init__(self, store: Storage, clock: Clock, *, randomness: random.Random) -> None:
        super().__init__(store, clock, randomness=randomness)
        self._addresses = _DrawnAddresses(self._services)

    def _suffix(self) -> str:
        return "".join(self._random.choices(_SUFFIX_LETTERS, k=5))

    # -- writes ------------------------------------------------------------------------------

    def create(
        self, resource: APIResource, namespace: str, obj: Object, context: WriteContext
    ) -> Entry:
        """Store a new object, already decoded and defaulted; return its state."""
        metadata: Object = obj["metadata"]
        if namespace:
            self.check_namespace(resource, namespace, metadata.get("name", ""))
        single_owners(obj, context.warnings)
        fields = created_fields(_as_sent(resource, obj), resource.schema)
        for path in reset_fields(resource, ""):
            fields.pop(f"f:{path[0]}", None)
        owner = Owner(context.operation, context.manager, resource.api_version)
        given = metadata.get("managedFields")
        owners = Managed.entries_of_new(given, owner, fields, now=self.now())
        return self.store_new(resource, namespace, obj, owners, context)

    def store_new(
        self,
        resource: APIResource,
        namespace: str,
        obj: Object,
        owners: list[Object],
        context: WriteContext,
    ) -> Entry:
        """Complete, validate and store a new object whose owners are in managedFields form."""
        metadata: Object = obj["metadata"]
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
            metadata.pop(key, None)
        if namespace:
            metadata["namespace"] = namespace
        obj = self._completed(resource, namespace, obj, owners, context)
        metadata = obj["metadata"]
        if takes_version(metadata):
            raise refusal.server_error("resourceVersion should not be set on objects to be created")
        metadata["uid"] = drawn(self.new_uid)
        metadata["creationTimestamp"] = self.now()
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"][: 63 - 5] + drawn(self._suffix)
        if context.guard is not None:
            context.guard(resource, obj, None)
        self._prepare_create(resource, obj)
        causes = validate_create(resource, obj)
        if causes:
            kind = obj.get("kind", resource.kind)
            raise refusal.invalid(kind, resource.stored_group, metadata.get("name", ""), causes)
        plugins.check(resource, namespace, obj, self.under)
        self._secure(resource, obj, None, context)
        if context.admission is not None:
            context.admission.validate("CREATE", with_owners(obj, owners), None)
        charged = charge(resource, obj, self.under("resourcequotas", namespace))
        name = metadata["name"]
        bucket = self.bucket(resource)
        if (f"{namespace}/{name}" if namespace else name) in bucket.entries:
            raise refusal.already_exists(resource, name)
        if context.warnings is not None:
            context.warnings.extend(advice(resource, obj, None))
        if owners:
            metadata["managedFields"] = owners
        if context.dry_run:
            return self.entry(resource, obj, 0)
        if charged and resource.versions is not None:
            self.entry(resource, obj, 0)  # calls all webhooks before anything is stored
        for quota in charged:
            self.store_as_is(_QUOTAS, quota)
        entry = self.entry(resource, obj, self.store.revision + 1)
        self.store.put(bucket, entry)
        return entry

    def _completed(
        self,
        resource: APIResource,
        namespace: str,
        obj: Object,
        owners: list[Object],
        context: WriteContext,
    ) -> Object:
        """Return a new object completed by the server, policies and webhooks."""
        plugins.complete(resource, namespace, obj, self.under)
        complete = kind_of(resource).complete
        if complete is not None:
            complete(obj)
        if context.admission is None:
            return obj
        return self._mutated(resource, obj, None, owners, context.admission)[0]

    @staticmethod
    def _mutated(
        resource: APIResource,
        obj: Object,
        old: Object | None,
        owners: list[Object],
        admission: Admission,
    ) -> tuple[Object, Object]:
        """Return an object as policies and webhooks change it, and its metadata.

        The ownership of fields does not change: nobody owns fields that a mutator adds.
        """
        operation, shown = "UPDATE", obj
        if old is None:
            operation = "CREATE"
            if (
                "status" in obj
                and resource.custom is None
                and obj["status"] == _empty_status(resource)
            ):
                shown = {**obj, "status": {}}  # the status is set when the object is stored
        changed = admission.mutate(operation, with_owners(shown, owners), old)
        metadata: Object = changed["metadata"]
        metadata.pop("managedFields", None)
        namespace = obj["metadata"].get("namespace")
        if resource.namespaced and metadata.setdefault("namespace", namespace) != namespace:
            raise refusal.bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )
        return changed, metadata

    def check_namespace(self, resource: APIResource, namespace: str, name: str) -> None:
        """Refuse to create an object in a namespace that is missing or terminating."""
        found = self.store.bucket("namespaces").entries.get(namespace)
        if found is None:
            raise refusal.not_found(_NAMESPACES, namespace)
        if found.deleting:
            raise refusal.forbidden_object(
                resource,
                name,
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated",
                [
                    Cause(
                        "metadata.namespace",
                        "NamespaceTerminating",
                        f"namespace {namespace} is being terminated",
                    )
                ],
            )

    def _secure(
        self, resource: APIResource, new: Object, old: Object | None, context: WriteContext
    ) -> None:
        """Refuse, or warn about, violations of a namespace's Pod Security Standards."""
        warnings = secure(resource, new, old, context.subresource, self._labels_of, self.under)
        if context.warnings is not None:
            context.warnings.extend(warnings)

    def _labels_of(self, namespace: str) -> Mapping[str, str]:
        found = self.store.bucket("namespaces").entries.get(namespace)
        return {} if found is None else found.labels

    def _prepare_create(self, resource: APIResource, obj: Object) -> None:
        metadata = obj["metadata"]
        traits = kind_of(resource)
        if traits.generation and traits.new_generation:
            metadata["generation"] = traits.new_generation
        elif not metadata.get("generation"):
            metadata.pop("generation", None)
        if resource.custom is None:
            kind = kind_of(resource)
            if "status" in resource.subresources and not kind.keeps_status and "status" in obj:
                obj["status"] = _empty_status(resource)
            if kind.admit is not None:
                kind.admit(obj)
            self._allocate(resource, obj, None)
        elif "status" in resource.subresources:
            obj.pop("status", None)

    def _services(self) -> Iterator[Object]:
        return map(self.decode, self.store.bucket("services").current())

    def _allocate(self, resource: APIResource, new: Object, old: Object | None) -> None:
        allocate = kind_of(resource).allocate
        causes = allocate(new, old, self._addresses) if allocate is not None else []
        if causes:
            raise refusal.invalid_object(resource, new["metadata"].get("name", ""), causes)

    def update(
        self,
        resource: APIResource,
        namespace: str,
        name: str,
        produce: Callable[[Object | None, Entry | None], Object],
        context: WriteContext,
        *,
        is_put: bool,
    ) -> tuple[Entry, bool]:
        """Replace an object with what `produce` returns for its current state.

        Args:
            resource: the object's resource.
            namespace: "" for a cluster-scoped object.
            name: of the object.
            context: the context of the write.
            produce: gets the current object and its entry (both None if there is none); returns the
                new object, decoded and defaulted; may keep the dict it got.
            is_put: the whole body was sent, so its uid and resource version are preconditions and a
                missing object may be created.

        Returns:
            the new state, and whether the object was created.
        """
        entry = self.find(resource, namespace, name)
        traits = kind_of(resource)
        if entry is None:
            if not (is_put and traits.create_on_update and not context.subresource):
                raise refusal.not_found(resource, name)
            obj = produce(None, None)
            if asked_version(obj["metadata"]):
                raise refusal.not_found(resource, name)
            return self.create(resource, namespace, obj, context), True
        old = self.present(resource, entry)
        new = produce(copy_of(old), entry)
        single_owners(new, context.warnings, patched=not is_put)
        if context.admission is None:
            check_conditions(resource, entry, new["metadata"], is_put=is_put)
        managed = self._managed(new, old, context.subresource)
        if managed.sets:
            # objects without owners get none, as in `skipNonAppliedManager`
            managed.update(
                Owner(
                    context.operation, context.manager, resource.api_version, context.subresource
                ),
                _as_sent(resource, old),
                _as_sent(resource, new),
                resource.schema,
                now=self.now(),
                reset=reset_fields(resource, context.subresource),
            )
        stored = self.store_update(resource, entry, old, new, managed, context, is_put=is_put)
        return stored, False

    @staticmethod
    def _managed(new: Object, old: Object, subresource: str) -> Managed:
        """Return the owners that an update starts from, like `decodeLiveOrNew`."""
        given = None if subresource else new["metadata"].get("managedFields")
        if given in ([], [{}]):
            return Managed()
        if given:
            try:
                return Managed.read(given)
            except (msgspec.DecodeError, ValueError, RecursionError):
                pass  # ignore invalid entries
        return Managed.read(old["metadata"].get("managedFields"))

    def store_update(
        self,
        resource: APIResource,
        entry: Entry,
        old: Object,
        new: Object,
        managed: Managed,
        context: WriteContext,
        *,
        is_put: bool = False,
    ) -> Entry:
        """Complete, validate and store a changed object whose owners are recorded."""
        admission = context.admission
        if admission is not None:
            new, changed = self._mutated(resource, new, old, managed.write(), admission)
            check_conditions(resource, entry, changed, is_put=is_put)
        if context.guard is not None:
            context.guard(resource, new, old)
        self._prepare_update(resource, new, old, context.subresource)
        metadata = new["metadata"]
        causes = validate_update(resource, new, old, context.subresource, context.warnings)
        if causes:
            raise refusal.invalid_object(resource, metadata.get("name") or entry.name, causes)
        self._secure(resource, new, old, context)
        if admission is not None:
            admission.validate("UPDATE", with_owners(new, managed.write()), old)
        if context.warnings is not None:
            context.warnings.extend(advice(resource, new, old))
        before = old["metadata"].pop("managedFields", None)
        metadata.pop("managedFields", None)
        same = new == old and self._is_current(resource, entry)
        entries = managed.write()
        if same and not _differ_beyond_time(before or [], entries):
            return entry
        if entries:
            metadata["managedFields"] = entries
        if (
            metadata.get("deletionTimestamp")
            and not metadata.get("finalizers")
            and not metadata.get("deletionGracePeriodSeconds")
            and not _is_held(resource, new)
        ):
            # the last finalizer is gone: the response shows a state that is never stored
            last = self.entry(resource, new, entry.revision)
            if not context.dry_run:
                self.store.delete(self.bucket(resource), entry)
            return last
        if context.dry_run:
            return self.entry(resource, new, entry.revision)
        made = self.entry(resource, new, self.store.revision + 1)
        self.store.put(self.bucket(resource), made)
        return made

    def _prepare_update(
        self, resource: APIResource, new: Object, old: Object, subresource: str
    ) -> None:
        metadata, before = new["metadata"], old["metadata"]
        carry_metadata(metadata, before)
        if subresource == "status":
            keep_status_only(resource, new, old)
            settle = kind_of(resource).settle
            if settle is not None:
                settle(new, old, self.now())
        elif subresource in kind_of(resource).parts:
            kind_of(resource).parts[subresource](new, old)
        elif resource.custom is None:
            if "status" in resource.subresources and subresource == "":
                carry(new, old, "status")
            keep = kind_of(resource).carry
            if keep is not None and subresource != "finalize":
                keep(new, old)
            self._allocate(resource, new, old)
        elif "status" in resource.subresources:
            carry(new, old, "status")
        if (
            subresource != "status"
            and kind_of(resource).generation
            and kind_of(resource).generation_moves
            and spec_changed(resource, new, old)
        ):
            metadata["generation"] = before.get("generation", 0) + 1

    def bind(
        self, resource: APIResource, entry: Entry, node: str, *, dry_run: bool = False
    ) -> None:
        """Bind a pod to a node; 409 if it has one or is being deleted."""
        obj = self.decode(entry)
        spec = obj.setdefault("spec", {})
        why = ""
        if entry.deleting:
            why = f"pod {entry.name} is being deleted, cannot be assigned to a host"
        elif spec.get("nodeName"):
            why = f'pod {entry.name} is already assigned to node "{spec["nodeName"]}"'
        if why:
            raise refusal.not_bound(entry.name, why)
        spec["nodeName"] = node
        conditions = obj.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [each for each in conditions if each.get("type") != "PodScheduled"]
        conditions.append(
            {
                "type": "PodScheduled",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": self.now(),
            }
        )
        if not dry_run:
            self.store_as_is(resource, obj)


class _DrawnAddresses(Addresses):
    """Addresses; a request that starts over gets the same ones."""

    def cluster_ip(self) -> str | None:
        """Return a free address; None if there is none."""
        return drawn(super().cluster_ip)

    def node_port(self) -> int | None:
        """Return a free port of the default range; None if there is none."""
        return drawn(super().node_port)


def with_owners(obj: Object, owners: list[Object]) -> Object:
    """Return an object with its field owners; the original stays unchanged."""
    metadata = {key: each for key, each in obj["metadata"].items() if key != "managedFields"}
    if owners:
        metadata["managedFields"] = owners
    return {**obj, "metadata": metadata}


def _as_sent(resource: APIResource, obj: Object) -> Object:
    """Return an object in the version in which its fields are owned."""
    return obj if resource.convert is None else resource.convert.outward(obj)


def _is_held(resource: APIResource, obj: Object) -> bool:
    held = kind_of(resource).held
    return held is not None and held(obj)


def _empty_status(resource: APIResource) -> Object:
    # of a client's status, only fields set by defaults stay
    probe: Object = {"metadata": {}}
    apply_defaults(resource, probe)
    status: Object = probe.get("status", {})
    return status


def _differ_beyond_time(before: list[Object], after: list[Object]) -> bool:
    def timeless(entries: list[Object]) -> list[Object]:
        return [{key: value for key, value in entry.items() if key != "time"} for entry in entries]

    return before != after and sorted(map(str, timeless(before))) != sorted(
        map(str, timeless(after))
    )


_QUOTAS = APIResource("", "v1", "resourcequotas", "ResourceQuota", schema=ANY)
_NAMESPACES = APIResource("", "v1", "namespaces", "Namespace", schema=ANY, namespaced=False)
