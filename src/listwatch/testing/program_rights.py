"""Runs a program under test with the rights of its manifests, and tells which of them it lacks."""

import os
import secrets
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from listwatch.apiserver.access.asked_rights import AskedRight, merged
from listwatch.errors import ConfigError
from listwatch.runtime.loading import load_app
from listwatch.runtime.packaging.rbac import (
    READS,
    rights_of_program,
    role_manifests,
    to_yaml,
)
from listwatch.runtime.packaging.recorded import read_objects
from listwatch.runtime.packaging.rights import Right, rules_of

#: A file with roles, a Python file of a program, or the manifests themselves.
Roles: TypeAlias = str | os.PathLike[str] | Sequence[Mapping[str, Any]]

_KINDS: Final = frozenset(
    {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
)
_HOME: Final = "default"


class ProgramRoles(msgspec.Struct, frozen=True):
    """A service account and its roles, on a server that checks rights.

    Attributes:
        manifests: the account, roles and bindings.
        name: of the account.
        namespace: of the account.
        source: where they come from, for messages.
        token: the program's, for this run.
        admin_token: the test's, for this run.
    """

    manifests: tuple[Mapping[str, Any], ...]
    name: str
    namespace: str
    source: str
    token: str = msgspec.field(default_factory=secrets.token_urlsafe)
    admin_token: str = msgspec.field(default_factory=secrets.token_urlsafe)

    @classmethod
    def of(cls, given: Roles) -> "ProgramRoles":
        """Return the roles of a file, a program or manifests.

        Raises:
            ConfigError: they can't be read, or don't have exactly one service account.
        """
        if isinstance(given, str | os.PathLike):
            path = Path(given)
            source = str(path)
            objects = _derived(path) if path.suffix == ".py" else read_objects(path)
        else:
            source, objects = "rbac=", list(given)
        found = tuple(obj for obj in objects if obj.get("kind") in _KINDS)
        accounts = [obj["metadata"] for obj in found if obj.get("kind") == "ServiceAccount"]
        if len(accounts) != 1:
            names = ", ".join(str(each.get("name")) for each in accounts)
            raise ConfigError(
                f"{source}: it must have one ServiceAccount, that of the program, but has "
                f"{names or 'none'}"
            )
        namespace = accounts[0].get("namespace") or _HOME
        return cls(found, str(accounts[0].get("name")), str(namespace), source)

    @property
    def user(self) -> str:
        """The account's user name."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def tokens(self) -> str:
        """The lines of a token file for the test, an administrator, and for the program."""
        groups = f"system:serviceaccounts,system:serviceaccounts:{self.namespace}"
        administrator = f"{self.admin_token},kubernetes-admin,,system:masters\n"
        return f'{administrator}{self.token},{self.user},,"{groups}"\n'

    def missing(self, asked: Iterable[AskedRight]) -> str:
        """Return in words which rights the program asked for in vain; "" for none."""
        refused = merged(each for each in asked if each.refused and each.user == self.user)
        if not refused:
            return ""
        lines = [f"the program asked for rights that {self.source} does not grant:"]
        for each in refused:
            where = f" in {', '.join(each.namespaces)}" if each.namespaces else ""
            lines.append(f"  {each.verb} {_right(each).qualified}{where}")
        rules = to_yaml([rules_of(map(_right, refused))]).removeprefix("---\n")
        lines += ["add to the rules of its role:", textwrap.indent(rules.rstrip(), "  ")]
        if calls := list(_declarations(map(_right, refused))):
            lines += ["or declare in the program, for `listwatch rbac`:", *calls]
        return "\n".join(lines)


def _derived(path: Path) -> list[dict[str, Any]]:
    app = load_app(path)
    return role_manifests(app.name, app.name, rights_of_program(app))


def _right(asked: AskedRight) -> Right:
    return Right(asked.group, asked.resource, asked.verb)


def _declarations(rights: Iterable[Right]) -> Iterator[str]:
    verbs: dict[str, list[str]] = {}
    for right in rights:
        if right.verb not in READS:
            verbs.setdefault(right.qualified, []).append(right.verb)
    for resource, each in verbs.items():
        shown = ", ".join(f'"{verb}"' for verb in each)
        yield f'  .writes("{resource}", {shown})'
