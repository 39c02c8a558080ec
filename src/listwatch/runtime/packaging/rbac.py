"""The minimal permissions of a program, derived from what it watches and declares to write."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from listwatch.errors import ConfigError
from listwatch.runtime.caches import Cache
from listwatch.runtime.manager import Manager
from listwatch.runtime.packaging.rights import (
    Right,
    built_in,
    rights_on,
    rules_of,
    split_resource,
)
from listwatch.selector import dns_label_problems, subdomain_problems
from listwatch.webhooks.hooks import AdmissionHook
from listwatch.webhooks.registration import GROUP as REGISTRATION
from listwatch.webhooks.registration import MUTATING, VALIDATING
from listwatch.webhooks.webhooks import Webhooks

_GROUP: Final = "rbac.authorization.k8s.io"
_LEASES: Final = ("coordination.k8s.io", "leases")
_CANDIDATES: Final = ("coordination.k8s.io", "leasecandidates")
#: What a cache does.
READS: Final = ("get", "list", "watch")

#: Whether the objects of a resource, given by group and plural name, are in namespaces; None if
#: unknown.
Scopes: TypeAlias = Callable[[str, str], bool | None]


class ProgramRights(msgspec.Struct, kw_only=True):
    """The rights that a program needs.

    Attributes:
        everywhere: in the whole cluster.
        in_namespaces: in one namespace each.
        own: in the namespace that the program runs in.
    """

    everywhere: set[Right] = msgspec.field(default_factory=set)
    in_namespaces: dict[str, set[Right]] = msgspec.field(default_factory=dict)
    own: set[Right] = msgspec.field(default_factory=set)

    @property
    def all(self) -> set[Right]:
        """Every right, wherever it applies."""
        return self.everywhere.union(self.own, *self.in_namespaces.values())

    def grant(self, rights: Iterable[Right], places: Collection[str]) -> None:
        """Add rights in some namespaces; everywhere if there are none."""
        if not places:
            self.everywhere |= set(rights)
        for place in places:
            self.in_namespaces.setdefault(place, set()).update(rights)

    def narrowed(self, namespaces: Iterable[str], scopes: Scopes) -> "ProgramRights":
        """Return the rights that suffice if the program watches only some namespaces.

        Rights on resources without namespaces, or of unknown scope, stay as they are.

        Args:
            namespaces: those that it watches; none of them changes nothing.
            scopes: the scopes of the resources.
        """
        places = sorted(set(namespaces))
        if not places:
            return self
        movable = {right for right in self.everywhere if _is_namespaced(right, scopes)}
        moved = {place: self.in_namespaces.get(place, set()) | movable for place in places}
        # An election reports events about the lease.
        events = {right for right in movable if right.resource == "events"} if self.own else set()
        return ProgramRights(
            everywhere=self.everywhere - movable,
            in_namespaces=self.in_namespaces | moved,
            own=self.own | events,
        )


def _is_namespaced(right: Right, scopes: Scopes) -> bool:
    return scopes(right.group, right.resource.partition("/")[0]) is True


def built_in_scope(group: str, plural: str) -> bool | None:
    """Return whether a built-in resource is namespaced; None if it is not built-in."""
    row = built_in(group, plural)
    return None if row is None else row["scope"] == "Namespaced"


def rights_of_program(
    app: Manager, *, registers: bool = True, scopes: Scopes = built_in_scope
) -> ProgramRights:
    """Return the rights that a program needs for what it watches and declares.

    Args:
        app: the program.
        registers: whether it creates its webhook configurations itself, if it is to do so. False if
            manifests create them.
        scopes: the scopes of resources.

    Raises:
        ConfigError: the name of a resource lacks its group.
    """
    found = ProgramRights(own=lease_rights(app))
    if app.webhooks:
        found.everywhere |= _registration_rights(app.webhooks, registers=registers)
        found.own |= _certificate_rights(app.webhooks)
    for cache in app.caches:
        # A cache also reads single objects: what it could not decode, or whose write had no answer.
        found.grant(rights_on(cache.selection.resource, READS), _places([cache], scopes))
    everywhere = not app.reconcilers
    places: set[str] = set()
    for reconciler in app.reconcilers:
        within = _places(reconciler.caches, scopes)
        places |= within
        everywhere |= not within
        for resource, verbs in reconciler.declared.items():
            group, plural = split_resource(resource.partition("/")[0])
            is_cached = any(
                split_resource(cache.selection.resource) == (group, plural)
                for cache in reconciler.caches
            )
            # A resource of unknown scope that is cached in namespaces has some.
            scope = is_cached if scopes(group, plural) is None else scopes(group, plural)
            found.grant(rights_on(resource, verbs), within if scope else ())
    group = "" if app.event_api == "v1" else "events.k8s.io"
    events = {Right(group, "events", verb) for verb in ("create", "patch")}
    found.grant(events, () if everywhere else places)
    if app.lease and not everywhere:
        found.own |= events  # an election reports events about the lease
    return found


def _places(caches: Iterable[Cache], scopes: Scopes) -> set[str]:
    """Return the namespaces of caches; none if one of them holds all."""
    found: set[str] = set()
    for cache in caches:
        selection = cache.selection
        if scopes(*split_resource(selection.resource)) is False:
            continue
        if not selection.namespace:
            return set()
        found.add(selection.namespace)
    return found


def lease_rights(app: Manager) -> set[Right]:
    """Return the rights for a program's lease or leases; none without an election."""
    if not app.lease:
        return set()
    if app.shares_keys:  # each member creates one, and deletes those of dead members
        return {Right(*_LEASES, verb) for verb in ("create", "delete", "get", "list", "update")}
    found = _on_one(*_LEASES, app.lease)
    if app.is_coordinated:  # each process has one, of its own name
        found |= {Right(*_CANDIDATES, verb) for verb in ("create", "get", "update")}
    return found


def _on_one(group: str, plural: str, name: str) -> set[Right]:
    """Return the rights to create one object, and to read and update it."""
    # RBAC can't limit "create" to a name, because none is known then.
    return {
        Right(group, plural, "create"),
        *(Right(group, plural, verb, name) for verb in ("get", "update")),
    }


def _certificate_rights(webhooks: Webhooks) -> set[Right]:
    lease = _on_one(*_LEASES, webhooks.lease)
    return lease | (_on_one("", "secrets", webhooks.secret) if webhooks.secret else set())


def _registration_rights(webhooks: Webhooks, *, registers: bool) -> set[Right]:
    hooks = [hook for hook in webhooks.hooks if isinstance(hook, AdmissionHook)]
    used = {MUTATING if hook.mutating else VALIDATING for hook in hooks}
    found = {Right(REGISTRATION, plural, "get", webhooks.app) for plural in (MUTATING, VALIDATING)}
    for plural in (MUTATING, VALIDATING) if registers and webhooks.options.register else used:
        found.add(Right(REGISTRATION, plural, "update", webhooks.app))
    if registers and webhooks.options.register:
        for plural in (MUTATING, VALIDATING):
            found |= {Right(REGISTRATION, plural, "create")}
            found |= {Right(REGISTRATION, plural, "delete", webhooks.app)}
    for name in webhooks.conversions:
        for verb in ("get", "update"):
            found.add(Right("apiextensions.k8s.io", "customresourcedefinitions", verb, name))
    return found


def manifests(app: Manager, namespace: str) -> list[dict[str, Any]]:
    """Return a program's service account, with the roles and bindings that it needs.

    Permissions to watch and write go into a ClusterRole, because the objects may be in any
    namespace; those for one namespace, such as for the lease, go into a Role there.

    Args:
        app: the program, not started.
        namespace: the program's namespace.

    Raises:
        ConfigError: the name of a resource lacks its group, or a server would refuse the program's
            name or the namespace.
    """
    return role_manifests(app.name, namespace, rights_of_program(app))


def role_manifests(name: str, namespace: str, rights: ProgramRights) -> list[dict[str, Any]]:
    """Return a service account with these rights.

    Args:
        name: of all objects.
        namespace: that the program runs in.
        rights: what it may do.

    Raises:
        ConfigError: a server would refuse the name or the namespace.
    """
    check_names(name, namespace)
    account = Account(name, namespace)
    places = {place: set(given) for place, given in rights.in_namespaces.items()}
    if rights.own:
        places.setdefault(namespace, set()).update(rights.own)
    ordered = sorted(places.items(), key=lambda one: (one[0] != namespace, one[0]))
    return [
        account.manifest(),
        *account.cluster_role(rights.everywhere),
        *(obj for place, given in ordered for obj in account.role(place, given)),
    ]


class Account(NamedTuple):
    """A service account, for which roles are made."""

    name: str
    namespace: str

    def manifest(self) -> dict[str, Any]:
        """Return the account."""
        meta = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}

    def cluster_role(self, rights: Collection[Right]) -> list[dict[str, Any]]:
        """Return a ClusterRole with its binding; nothing without rights."""
        return self._bound("Cluster", {"name": self.name}, rights)

    def role(self, place: str, rights: Collection[Right], suffix: str = "") -> list[dict[str, Any]]:
        """Return a Role in a namespace with its binding; nothing without rights."""
        return self._bound("", {"name": f"{self.name}{suffix}", "namespace": place}, rights)

    def _bound(
        self, scope: str, meta: Mapping[str, str], rights: Collection[Right]
    ) -> list[dict[str, Any]]:
        if not rights:
            return []
        role = {"apiGroup": _GROUP, "kind": f"{scope}Role", "name": meta["name"]}
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}
        version = f"{_GROUP}/v1"
        return [
            {
                "apiVersion": version,
                "kind": f"{scope}Role",
                "metadata": dict(meta),
                "rules": rules_of(rights),
            },
            {
                "apiVersion": version,
                "kind": f"{scope}RoleBinding",
                "metadata": dict(meta),
                "roleRef": role,
                "subjects": [subject],
            },
        ]


def check_names(name: str, namespace: str) -> None:
    """Return if a service account can have this name, in a namespace of this name.

    Raises:
        ConfigError: it can't.
    """
    if problems := subdomain_problems(name):
        raise ConfigError(
            f"the Manager's name {name!r} can't name a service account: {problems[0]}"
        )
    # A namespace may begin with a digit, unlike a Service.
    if problems := dns_label_problems(f"n{namespace}" if namespace[:1].isdecimal() else namespace):
        raise ConfigError(f"the namespace {namespace!r} can't be used: {problems[0]}")


def to_yaml(objects: Iterable[object]) -> str:
    """Return objects as one YAML file."""
    import yaml  # noqa: PLC0415 - needed only to write YAML

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - yaml's signature
            return True

    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, explicit_start=True)
