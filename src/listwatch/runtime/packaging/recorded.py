"""Rights that programs asked for in tests: from a server's record to a file of roles, and back."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from listwatch.apiserver.access.asked_rights import AskedRight, merged
from listwatch.errors import ConfigError, ListWatchError
from listwatch.runtime.packaging.rbac import READS, ProgramRights, role_manifests, to_yaml
from listwatch.runtime.packaging.rights import Right, rights_of
from listwatch.schema.parsing import parse_yaml_documents

_LEASES: Final = ("coordination.k8s.io", "leases")
#: Resources of which a program has objects of its own, with names that do not change.
_OWN: Final = frozenset({_LEASES, ("", "secrets")})
_HEADER: Final = (
    "# Written by `pytest --record-rbac`: the rights that the tests' programs asked for.\n"
    "# `listwatch rbac FILE --recorded THIS` compares them with what a program declares.\n"
)


def recorded_rights(asked: Iterable[AskedRight]) -> dict[str, ProgramRights]:
    """Return the rights of each program, by its name."""
    programs: dict[str, list[AskedRight]] = {}
    for each in asked:
        programs.setdefault(each.program, []).append(each)
    return {name: _of_program(rights) for name, rights in sorted(programs.items())}


def _of_program(asked: Iterable[AskedRight]) -> ProgramRights:
    found = ProgramRights()
    by_resource: dict[tuple[str, str], list[AskedRight]] = {}
    for each in asked:
        by_resource.setdefault((each.group, each.resource), []).append(each)
    for resource, rights in by_resource.items():
        names = {name for one in rights for name in one.names}
        is_single = resource in _OWN and len(names) == 1
        # A program that lists a resource does not have objects of its own there.
        if is_single and {one.verb for one in rights}.isdisjoint({"list", "watch"}):
            (name,) = names
            found.own |= {_right(one, name if one.names else "") for one in rights}
        elif resource == _LEASES:
            found.own |= {_right(one) for one in rights}
        else:
            found.everywhere |= {_right(one) for one in rights}
            if "watch" in {one.verb for one in rights}:
                # A cache lists where the server can't stream the list, and reads single objects.
                found.everywhere |= {Right(*resource, verb) for verb in READS}
    return found


def _right(asked: AskedRight, name: str = "") -> Right:
    return Right(asked.group, asked.resource, asked.verb, name)


def write_recorded(path: Path, asked: Iterable[AskedRight]) -> list[str]:
    """Write the roles of the programs to a file, and return the programs' names."""
    programs = recorded_rights(merged(asked))
    objects = [
        obj for name, rights in programs.items() for obj in role_manifests(name, "default", rights)
    ]
    path.write_text(_HEADER + to_yaml(objects), encoding="utf-8")
    return list(programs)


def read_recorded(path: Path, name: str) -> ProgramRights:
    """Read the rights of one program from a file that `write_recorded` wrote.

    Raises:
        ConfigError: the file can't be read, or has no roles of this program.
    """
    found = ProgramRights()
    objects = read_objects(path)
    mine = [obj for obj in objects if (obj.get("metadata") or {}).get("name") == name]
    for obj in mine:
        rights = rights_of(obj.get("rules") or ())
        if obj.get("kind") == "ClusterRole":
            found.everywhere |= rights
        elif obj.get("kind") == "Role":
            found.own |= rights
    if not found.all:
        names = {str((obj.get("metadata") or {}).get("name")) for obj in objects}
        raise ConfigError(
            f"{path}: it has no roles of {name}, only of {', '.join(sorted(names)) or 'nobody'}"
        )
    return found


def read_objects(path: Path) -> list[Mapping[str, Any]]:
    """Return the objects of a YAML file.

    Raises:
        ConfigError: the file can't be read, or does not contain objects.
    """
    try:
        values = [value for value in parse_yaml_documents(path.read_bytes()) if value is not None]
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, ListWatchError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not all(isinstance(value, Mapping) for value in values):
        raise ConfigError(f"{path}: a manifest must be an object")
    return values
