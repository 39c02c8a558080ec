from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from listwatch.apiserver.access.asked_rights import AskedRight, merged
from listwatch.errors import ConfigError
from listwatch.runtime import Manager
from listwatch.runtime.packaging.commands import rbac_command
from listwatch.runtime.packaging.rbac import (
    ProgramRights,
    built_in_scope,
    rights_of_program,
    role_manifests,
)
from listwatch.runtime.packaging.recorded import read_recorded, write_recorded
from listwatch.runtime.packaging.rights import Right, is_granted, rights_of, rights_on, rules_of

_words = st.sampled_from(["", "apps", "pods", "pods/status", "get", "patch", "one"])
_rights = st.builds(Right, _words, _words, _words, _words)


@given(st.sets(_rights, max_size=8))
def test_rules_grant_exactly_the_rights_that_they_were_made_of(rights: set[Right]) -> None:
    rules = rules_of(rights)
    assert rights_of(rules) == rights
    assert rules == rules_of(sorted(rights, reverse=True))


@pytest.mark.parametrize(
    ("right", "by", "granted"),
    [
        (Right("", "pods", "get"), Right("", "pods", "get"), True),
        (Right("", "pods", "get"), Right("*", "*", "*"), True),
        (Right("apps", "deployments/scale", "get"), Right("apps", "*/scale", "get"), True),
        (Right("apps", "deployments", "get"), Right("apps", "*/scale", "get"), False),
        (Right("apps", "deployments/scale", "get"), Right("apps", "deployments", "get"), False),
        (Right("", "pods", "get", "a"), Right("", "pods", "get"), True),
        (Right("", "pods", "get"), Right("", "pods", "get", "a"), False),
    ],
)
def test_a_right_is_granted_as_by_an_api_server(right: Right, by: Right, granted: bool) -> None:
    assert is_granted(right, {by}) is granted


def program(**options: Any) -> Manager:
    app = Manager("web", **options)
    sites = app.reconciler("sites").for_("sites.example.com").owns("deployments.apps")
    sites.reads("configmaps", namespace="settings").reads("nodes", namespace="settings")
    sites.writes("sites.example.com/status", "patch").writes("deployments.apps", "create")
    return app


def test_the_rights_are_those_of_caches_writes_owners_events_and_the_lease() -> None:
    rights = rights_of_program(program(leader_election="web"))
    reads = ("get", "list", "watch")
    assert rights.everywhere == {
        *rights_on("sites.example.com", reads),
        *rights_on("deployments.apps", (*reads, "create")),
        *rights_on("nodes", reads),  # cluster-scoped, whatever namespace was given
        *rights_on("sites.example.com/status", ["patch"]),
        *rights_on("sites.example.com/finalizers", ["update"]),
        *rights_on("events.events.k8s.io", ["create", "patch"]),
    }
    assert rights.in_namespaces == {"settings": rights_on("configmaps", reads)}
    assert rights.own == {
        Right("coordination.k8s.io", "leases", "create"),
        Right("coordination.k8s.io", "leases", "get", "web"),
        Right("coordination.k8s.io", "leases", "update", "web"),
    }


def test_a_program_that_watches_some_namespaces_gets_no_right_elsewhere() -> None:
    def scopes(group: str, plural: str) -> bool | None:
        return True if group == "example.com" else built_in_scope(group, plural)

    before = rights_of_program(program())
    rights = before.narrowed(["a", "b"], scopes)
    assert rights.everywhere == rights_on("nodes", ("get", "list", "watch"))
    assert sorted(rights.in_namespaces) == ["a", "b", "settings"]
    assert rights.in_namespaces["a"] == before.everywhere - rights.everywhere
    assert rights.in_namespaces["settings"] == before.in_namespaces["settings"]
    assert before.narrowed([], scopes) == before
    unknown = before.narrowed(["a"], built_in_scope).everywhere
    assert rights_on("sites.example.com", ["list"]) <= unknown


def test_the_rights_of_a_program_in_namespaces_are_limited_to_them() -> None:
    app = Manager("web", leader_election="web")
    sites = app.reconciler("sites").for_("sites.example.com", namespaces=["a", "b"])
    sites.owns("deployments.apps", namespaces=["a", "b"]).reads("nodes")
    sites.writes("sites.example.com/status", "patch").writes("nodes/status", "patch")
    sites.writes("others.example.com", "patch")
    rights = rights_of_program(app)
    assert rights.everywhere == {
        *rights_on("nodes", ("get", "list", "watch")),
        *rights_on("nodes/status", ["patch"]),
        *rights_on("others.example.com", ["patch"]),  # nothing says that they have namespaces
    }
    assert rights.in_namespaces["a"] == rights.in_namespaces["b"]
    assert rights.in_namespaces["a"] > {
        *rights_on("sites.example.com/status", ["patch"]),
        *rights_on("sites.example.com/finalizers", ["update"]),
        *rights_on("events.events.k8s.io", ["create", "patch"]),
    }


def test_one_role_for_each_namespace_and_one_binding_for_each_role() -> None:
    rights = ProgramRights(
        in_namespaces={"home": rights_on("pods", ["list"]), "a": rights_on("pods", ["list"])},
        own=rights_on("secrets", ["get"]),
    )
    made = role_manifests("web", "home", rights)
    shown = [(obj["kind"], obj["metadata"].get("namespace")) for obj in made]
    assert shown == [
        ("ServiceAccount", "home"),
        ("Role", "home"),
        ("RoleBinding", "home"),
        ("Role", "a"),
        ("RoleBinding", "a"),
    ]
    assert rights_of(made[1]["rules"]) == rights.own | rights.in_namespaces["home"]
    assert all(obj["subjects"][0]["namespace"] == "home" for obj in made if "subjects" in obj)


# --- Recorded rights ---


def asked(resource: str, verb: str, *names: str, group: str = "", **more: Any) -> AskedRight:
    fields = {"program": "web", "user": "u", "namespaces": ("default",)} | more
    return AskedRight(group=group, resource=resource, verb=verb, names=names, **fields)


def test_recorded_roles_name_the_objects_of_the_program_itself_and_no_others(
    tmp_path: Path,
) -> None:
    leases = "coordination.k8s.io"
    path = tmp_path / "roles.yaml"
    record = [
        asked("leases", "create", group=leases),
        asked("leases", "get", "web", group=leases),
        asked("secrets", "patch", "certificate"),
        asked("configmaps", "patch", "one"),
        asked("configmaps", "patch", "two"),
        asked("pods", "list", program="other"),
    ]
    assert write_recorded(path, record) == ["other", "web"]
    rights = read_recorded(path, "web")
    assert rights.everywhere == rights_on("configmaps", ["patch"])
    assert rights.own == {
        Right(leases, "leases", "create"),
        Right(leases, "leases", "get", "web"),
        Right("", "secrets", "patch", "certificate"),
    }
    before = path.read_bytes()
    write_recorded(path, reversed(record))
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="no roles of nobody, only of other, web"):
        read_recorded(path, "nobody")


def test_the_records_of_several_servers_are_one() -> None:
    two = merged([asked("pods", "get", "b"), asked("pods", "get", "a", refused=True)])
    assert two == [asked("pods", "get", "a", "b", refused=True)]


@pytest.mark.parametrize(
    ("content", "words"), [(b"{", "is not YAML"), (b"- 1\n", "must be an object")]
)
def test_a_file_without_roles_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "roles.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_recorded(path, "web")


# --- The command ---

_PROGRAM = """
from dataclasses import dataclass
from listwatch.runtime import Manager, apply, finalize, update_status
from listwatch.resources import ObjectMeta, resource

@resource("example.com", "v1")
@dataclass
class Site:
    metadata: ObjectMeta

app = Manager("web")
sites = app.reconciler("sites").for_("sites.example.com")
{declared}

@sites
async def reconcile(key):
    {code}
"""


def run(
    tmp_path: Path, code: str, *options: str, declared: str = ""
) -> tuple[list[str], list[Any]]:
    """Return the warnings and the objects that `listwatch rbac` prints."""
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM.format(code=code, declared=declared))
    done = CliRunner().invoke(rbac_command, [str(path), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    lines = [line.replace(f"{path}:", "") for line in done.stderr.splitlines()]
    return lines, list(yaml.safe_load_all(done.stdout))


_MANIFEST = "{'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {}}"


@pytest.mark.parametrize(
    ("code", "what", "told", "declared"),
    [
        (
            "await app.client.patch('namespaces', key, {})",
            "client.patch() patches namespaces",
            'writes("namespaces", "patch")',
            "",
        ),
        (
            "await app.client.delete(Site, key)",
            "client.delete() deletes sites.example.com",
            'writes("sites.example.com", "delete")',
            "",
        ),
        (
            "await app.client.patch('deployments.apps', key, {}, subresource='scale')",
            "client.patch() patches deployments.apps/scale",
            'writes("deployments.apps/scale", "patch")',
            "",
        ),
        (
            f"await apply(app.client, {_MANIFEST})",
            "Deployment apps/v1 is written here",
            'writes("deployments.apps", "create", "patch")',
            "",
        ),
        (
            "await update_status(app.client, None, {})",
            "update_status() patches the status",
            'writes(the resource, "patch")',
            'writes("sites.example.com/status", "patch")',
        ),
        (
            "await finalize(app.client, None, 'example.com/x', None)",
            "finalize() patches finalizers",
            'writes(the resource, "patch")',
            'writes("sites.example.com", "patch")',
        ),
    ],
)
def test_a_write_that_no_rule_allows_is_told_with_its_line_until_it_is_declared(
    tmp_path: Path, code: str, what: str, told: str, declared: str
) -> None:
    words = f"{what}, but no rule allows it: declare it with {told}"
    assert run(tmp_path, code)[0] == [f"warning: 17: {words}"]
    assert run(tmp_path, code, declared=f"sites.{declared or told}")[0] == []


def test_modules_beside_the_program_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "parts_of_web.py").write_text(
        "async def f(client):\n    await client.delete('pods', 'a')\n"
    )
    warnings, _ = run(tmp_path, "pass", declared="import parts_of_web")
    assert [line.partition(": client")[0] for line in warnings] == [
        f"warning: {tmp_path}/parts_of_web.py:2"
    ]


def test_what_tests_asked_for_is_granted_and_what_differs_is_told(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded.yaml"
    write_recorded(
        recorded,
        [
            asked("sites", "list", group="example.com"),
            asked("secrets", "delete", "a"),
            asked("secrets", "list"),
        ],
    )
    warnings, objects = run(
        tmp_path, "pass", "--recorded", str(recorded), declared='sites.writes("pods", "create")'
    )
    assert warnings == [
        "warning: delete secrets: tests ask for it, but the program does not declare it",
        "warning: list secrets: tests ask for it, but the program does not declare it",
        "warning: create pods: declared, but no test asks for it",
        "warning: create events.events.k8s.io: declared, but no test asks for it",
        "warning: patch events.events.k8s.io: declared, but no test asks for it",
    ]
    (role,) = [obj for obj in objects if obj["kind"] == "ClusterRole"]
    assert rights_on("secrets", ["delete", "list"]) <= rights_of(role["rules"])


def test_rbac_takes_the_lease_and_the_namespaces_as_run_does(tmp_path: Path) -> None:
    _, objects = run(
        tmp_path, "pass", "-n", "home", "--leader-election", "x", "--watch-namespace", "a"
    )
    roles = {obj["metadata"]["namespace"]: obj["rules"] for obj in objects if obj["kind"] == "Role"}
    assert Right("coordination.k8s.io", "leases", "update", "x") in rights_of(roles["home"])
    assert rights_on("sites.example.com", ["watch"]) <= rights_of(roles["a"])
    assert not [obj for obj in objects if obj["kind"] == "ClusterRole"]
