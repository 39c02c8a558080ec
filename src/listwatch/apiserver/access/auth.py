"""Authentication and authorization: bearer tokens, client certificates, impersonation, RBAC."""

import csv
import hmac
import io
import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from aiohttp.web_request import BaseRequest

from listwatch.apiserver import refusal
from listwatch.apiserver.access.issued_tokens import IssuedTokens
from listwatch.apiserver.http.call import printable
from listwatch.apiserver.http.request_info import RequestInfo
from listwatch.apiserver.storage.store import Bucket, Storage
from listwatch.apiserver.user import Question, User
from listwatch.errors import ConfigError
from listwatch.schema.causes import go_quoted

if TYPE_CHECKING:
    from listwatch.apiserver.access.asked_rights import AskedRights

Object = Mapping[str, Any]

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
ANONYMOUS = User("system:anonymous", (UNAUTHENTICATED,))
#: The user of every request if access is not configured.
ADMINISTRATOR = User("kubernetes-admin", (MASTERS, AUTHENTICATED))
#: Groups that contain everybody: their bindings name no particular user.
_EVERYBODY = frozenset((AUTHENTICATED, UNAUTHENTICATED, "system:serviceaccounts"))
#: The reason for an allowed request that no role allows.
_UNCHECKED = "this server checks nobody's rights but of users whom a role binding names"
RBAC = "rbac.authorization.k8s.io"


def read_tokens(text: str, name: str) -> dict[str, User]:
    """Parse a kube-apiserver token file: lines of token,user,uid[,"group1,group2"].

    Raises:
        ConfigError: invalid; names the file and the line.
    """
    tokens: dict[str, User] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row or (len(row) == 1 and not row[0].strip()) or row[0].startswith("#"):
            continue
        if len(row) < 3 or not row[0].strip() or not row[1].strip():
            raise ConfigError(
                f"{name}, line {number}: a line of a token file is token,user,uid or "
                'token,user,uid,"group1,group2"'
            )
        token, user, uid = (column.strip() for column in row[:3])
        if token in tokens:
            raise ConfigError(f"{name}, line {number}: this token was given to another user above")
        groups = [each.strip() for each in row[3].split(",")] if len(row) > 3 else []
        tokens[token] = User(user, (*filter(None, groups), AUTHENTICATED), uid)
    if not tokens:
        raise ConfigError(f"{name}: no tokens in this file")
    return tokens


class Rule(msgspec.Struct, frozen=True):
    """One rule of a role."""

    verbs: tuple[str, ...] = ()
    apiGroups: tuple[str, ...] = ()  # noqa: N815 - the name in JSON
    resources: tuple[str, ...] = ()
    resourceNames: tuple[str, ...] = ()  # noqa: N815 - the name in JSON
    nonResourceURLs: tuple[str, ...] = ()  # noqa: N815 - the name in JSON

    def allows(self, info: RequestInfo) -> bool:
        """Return whether the rule allows a request."""
        if "*" not in self.verbs and info.verb not in self.verbs:
            return False
        if not info.is_resource:
            return any(covers_path(pattern, info.path) for pattern in self.nonResourceURLs)
        if "*" not in self.apiGroups and info.group not in self.apiGroups:
            return False
        whole = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
        if not (
            "*" in self.resources
            or whole in self.resources
            or (info.subresource and f"*/{info.subresource}" in self.resources)
        ):
            return False
        return not self.resourceNames or info.authorized_name in self.resourceNames


def covers_path(pattern: str, path: str) -> bool:
    """Return whether a path equals, or begins with, the pattern of a rule."""
    return pattern in {"*", path} or (pattern.endswith("*") and path.startswith(pattern[:-1]))


class _Role(msgspec.Struct):
    rules: list[Rule] | None = None
    aggregationRule: dict[str, Any] | None = None  # noqa: N815 - the name in JSON


class _Subject(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _RoleRef(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _Binding(msgspec.Struct):
    roleRef: _RoleRef = msgspec.field(default_factory=_RoleRef)  # noqa: N815 - the name in JSON
    subjects: list[_Subject] | None = None


class Grant(msgspec.Struct, frozen=True):
    """Rules that a binding gives to subjects, in one namespace or ("") in all."""

    namespace: str
    subjects: tuple[_Subject, ...]
    rules: tuple[Rule, ...]
    binding: str = ""
    role: str = ""

    def words(self, subject: _Subject) -> str:
        """Return what grants the permission, as `plugin/pkg/auth/authorizer/rbac` words it."""
        kind = "RoleBinding" if self.namespace else "ClusterRoleBinding"
        name = f"{self.binding}/{self.namespace}" if self.namespace else self.binding
        who = subject.name
        if subject.kind == "ServiceAccount":
            who = f"{subject.name}/{subject.namespace or self.namespace}"
        return f'RBAC: allowed by {kind} "{name}" of {self.role} to {subject.kind} "{who}"'


def _speaks_of(subject: _Subject, user: User, namespace: str) -> bool:
    if subject.kind == "User":
        return subject.name in {user.name, "*"}
    if subject.kind == "Group":
        return subject.name in user.groups
    if subject.kind == "ServiceAccount":
        home = subject.namespace or namespace
        return user.name == f"system:serviceaccount:{home}:{subject.name}"
    return False


class WithoutUserError(Exception):
    """Impersonation of groups, a uid or an extra without a user."""

    def __init__(self, groups: Sequence[str], uid: str) -> None:
        shown = ", ".join(map(go_quoted, groups))
        listed = f"[]string{{{shown}}}" if groups else "[]string(nil)"
        super().__init__(
            f'requested &user.DefaultInfo{{Name:"", UID:{go_quoted(uid)}, Groups:{listed}, '
            "Extra:map[string][]string(nil)} without impersonating a user name"
        )


class Access:
    """Authentication and authorization. For one event loop.

    Args:
        store: contains the roles and bindings.
        tokens: the user of each token; None lets everybody do everything.
        anonymous: treat requests without credentials as `system:anonymous`.
        issued: the service account tokens issued by this server; None for none.
    """

    def __init__(
        self,
        store: Storage,
        *,
        tokens: Mapping[str, User] | None = None,
        certificates: bool = False,
        anonymous: bool = True,
        issued: IssuedTokens | None = None,
    ) -> None:
        self._store = store
        self._issued = issued
        self._tokens = dict(tokens) if tokens is not None else None
        self._certificates = certificates
        self._anonymous = anonymous
        #: refuse client certificates as if they had expired, for tests
        self.client_certificates_expired = False
        self._grants: list[Grant] = []
        self._seen: tuple[int, ...] = ()
        #: records who asked for what, for tests
        self.asked: AskedRights | None = None

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything, but for impersonated users that a binding names."""
        return self._tokens is None and not self._certificates

    # -- who ---------------------------------------------------------------------------------

    def authenticate(self, request: BaseRequest) -> User:
        """Return the user who sent a request.

        Raises:
            UnauthorizedError: 401.
        """
        if self.is_open:
            return ADMINISTRATOR
        user = self._by_certificate(request) if self._certificates else None
        if user is not None:
            return user
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and credentials.strip():
            found = self.by_token(credentials.strip())
            if found is None:
                raise refusal.unauthorized()
            return found
        if not self._anonymous:
            raise refusal.unauthorized()
        return ANONYMOUS

    def by_token(self, token: str) -> User | None:
        """Return a token's user; None if it has none."""
        found = None
        given = token.encode(errors="surrogateescape")
        # compare every token, so that timing reveals nothing about them
        for known, user in (self._tokens or {}).items():
            if hmac.compare_digest(known.encode(), given):
                found = user
        if found is None and self._issued is not None:
            found = self._issued.user_of(token)
        return found

    def _by_certificate(self, request: BaseRequest) -> User | None:
        transport = request.transport
        connection = transport.get_extra_info("ssl_object") if transport is not None else None
        if not isinstance(connection, ssl.SSLObject):
            return None
        certificate = connection.getpeercert()
        if not certificate:
            return None
        if self.client_certificates_expired:
            raise refusal.unauthorized()
        subject: Any = certificate.get("subject", ())
        pairs = [pair for part in subject for pair in part]
        names = [value for key, value in pairs if key == "commonName"]
        groups = [value for key, value in pairs if key == "organizationName"]
        return User(names[0], (*groups, AUTHENTICATED)) if names else None

    def impersonate(self, user: User, request: BaseRequest) -> User:
        """Return the user that a request impersonates.

        Raises:
            ForbiddenError: the user must not impersonate them.
            WithoutUserError: groups, a uid or an extra without a user.
        """
        headers = request.headers
        name = printable(headers.get("Impersonate-User", ""))
        groups = [printable(each) for each in headers.getall("Impersonate-Group", [])]
        uid = printable(headers.get("Impersonate-Uid", ""))
        extra: dict[str, list[str]] = {}
        for key, value in headers.items():
            if key.lower().startswith("impersonate-extra-"):
                extra.setdefault(unquote(key[18:]).lower(), []).append(printable(value))
        if not name and (groups or uid or extra):
            raise WithoutUserError(groups, uid)
        if not name:
            return user
        account = name.split(":") if name.startswith("system:serviceaccount:") else []
        if len(account) == 4:
            self._may_impersonate(user, "serviceaccounts", account[3], account[2])
        else:
            self._may_impersonate(user, "users", name)
        for group in groups:
            self._may_impersonate(user, "groups", group)
        if uid:
            self._may_impersonate(user, "uids", uid, group="authentication.k8s.io")
        for key, values in extra.items():
            for value in values:
                self._may_impersonate(
                    user, "userextras", value, group="authentication.k8s.io", subresource=key
                )
        given = list(groups)
        if len(account) == 4 and not groups:
            given = ["system:serviceaccounts", f"system:serviceaccounts:{account[2]}"]
        if name != ANONYMOUS.name and AUTHENTICATED not in given:
            given.append(AUTHENTICATED)
        if name == ANONYMOUS.name and UNAUTHENTICATED not in given:
            given.append(UNAUTHENTICATED)
        return User(name, tuple(given), uid, extra)

    def _may_impersonate(
        self,
        user: User,
        resource: str,
        name: str,
        namespace: str = "",
        *,
        group: str = "",
        subresource: str = "",
    ) -> None:
        self.authorize(
            user,
            RequestInfo(
                path="",
                method="",
                is_resource=True,
                verb="impersonate",
                group=group,
                version="v1",
                resource=resource,
                subresource=subresource,
                namespace=namespace,
                name=name,
            ),
        )

    # -- may ---------------------------------------------------------------------------------

    def decide(self, user: User, info: RequestInfo) -> tuple[bool, str]:
        """Return whether a user may make a request, and what grants the permission."""
        if MASTERS in user.groups:
            return True, ""
        if self.is_open and not self._is_named(user):
            return True, _UNCHECKED
        for grant in self._current_grants():
            if grant.namespace not in {"", info.namespace}:
                continue
            for subject in grant.subjects:
                if _speaks_of(subject, user, grant.namespace) and any(
                    rule.allows(info) for rule in grant.rules
                ):
                    return True, grant.words(subject)
        return False, ""

    def _is_named(self, user: User) -> bool:
        """Return whether a binding names a user, or a group that does not contain everybody."""
        return any(
            _speaks_of(subject, user, grant.namespace) and subject.name not in _EVERYBODY
            for grant in self._current_grants()
            for subject in grant.subjects
        )

    def answer(self, user: User, question: Question) -> tuple[bool, str]:
        """Return whether a user may do something, and what grants the permission."""
        if question.path:
            return self.decide(user, RequestInfo(question.path, "", verb=question.verb))
        info = RequestInfo(
            "",
            "",
            is_resource=True,
            verb=question.verb,
            group=question.group,
            version="*",
            resource=question.resource,
            subresource=question.subresource,
            namespace=question.namespace,
            name=question.name,
        )
        return self.decide(user, info)

    def allows(self, user: User, info: RequestInfo) -> bool:
        """Return whether a user may make a request."""
        return self.decide(user, info)[0]

    def rules_for(self, user: User, namespace: str) -> Iterable[Rule]:
        """Yield a user's rules in a namespace."""
        for grant in self._current_grants():
            if grant.namespace in {"", namespace} and any(
                _speaks_of(subject, user, grant.namespace) for subject in grant.subjects
            ):
                yield from grant.rules

    def authorize(self, user: User, info: RequestInfo) -> None:
        """Refuse a request that a user may not make.

        Raises:
            ForbiddenError: 403.
        """
        if not self.allows(user, info):
            raise forbidden(user, info)

    def _current_grants(self) -> Sequence[Grant]:
        buckets = [
            self._store.bucket(f"{RBAC}/{name}")
            for name in ("roles", "clusterroles", "rolebindings", "clusterrolebindings")
        ]
        seen = tuple(bucket.version for bucket in buckets)
        if seen != self._seen:
            self._grants = _read_grants(*buckets)
            self._seen = seen
        return self._grants


def _read_grants(
    roles: Bucket, cluster_roles: Bucket, bindings: Bucket, cluster_bindings: Bucket
) -> list[Grant]:
    role_decoder = msgspec.json.Decoder(_Role, strict=False)
    binding_decoder = msgspec.json.Decoder(_Binding, strict=False)
    rules: dict[tuple[str, str, str], tuple[Rule, ...]] = {}
    for kind, bucket in (("Role", roles), ("ClusterRole", cluster_roles)):
        for entry in bucket.current():
            found = role_decoder.decode(entry.data).rules or []
            rules[kind, entry.namespace, entry.name] = tuple(found)
    grants = []
    for bucket in (bindings, cluster_bindings):
        for entry in bucket.current():
            binding = binding_decoder.decode(entry.data)
            ref = binding.roleRef
            home = entry.namespace if ref.kind == "Role" else ""
            granted = rules.get((ref.kind, home, ref.name), ())
            if granted and binding.subjects:
                grants.append(
                    Grant(
                        entry.namespace,
                        tuple(binding.subjects),
                        granted,
                        entry.name,
                        f'{ref.kind} "{ref.name}"',
                    )
                )
    return grants


def forbidden(user: User, info: RequestInfo) -> Exception:
    """Return the refusal of a request that a user may not make."""
    if not info.is_resource:
        return refusal.forbidden(
            f'forbidden: User "{user.name}" cannot {info.verb} path "{info.path}"'
        )
    qualified = f"{info.resource}.{info.group}" if info.group else info.resource
    what = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
    name = info.authorized_name
    named = f' "{name}"' if name else ""
    where = f'in the namespace "{info.namespace}"' if info.namespace else "at the cluster scope"
    details: dict[str, Any] = {"name": name} if name else {}
    if info.group:
        details["group"] = info.group
    details["kind"] = info.resource
    return refusal.forbidden(
        f'{qualified}{named} is forbidden: User "{user.name}" cannot {info.verb} resource '
        f'"{what}" in API group "{info.group}" {where}',
        details,
    )
