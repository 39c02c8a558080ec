"""The real kubectl works on the server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import components

pytestmark = pytest.mark.proof

_MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web, tier: front}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: "registry.example/web:1", env: [{name: A, value: "1"}]}
"""
_GADGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gadgets, kind: Gadget, shortNames: [gd]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer, description: how big}}}
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
"""


def _manifest(name: str) -> str:
    return _MANIFEST.replace("{name: web,", f"{{name: {name},", 1)


class Kubectl:
    """Run kubectl against one server, with its own home and cache."""

    def __init__(self, program: str, kubeconfig: Path, home: Path) -> None:
        self._program = program
        self._env = {
            "PATH": os.environ.get("PATH", ""),
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(home),
        }
        self.home = home
        told = json.loads(self("version --client -o json"))
        self._minor = int(told["clientVersion"]["minor"].rstrip("+"))

    def since(self, minor: int, why: str) -> None:
        """Skip the test if this kubectl is older."""
        if self._minor < minor:
            pytest.skip(f"{why} since 1.{minor}, and this one is 1.{self._minor}")

    def is_before(self, minor: int) -> bool:
        return self._minor < minor

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self._program, *arguments],
            env=self._env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """Run a command, check its exit code, and return its output."""
        process = self.start(*arguments)
        out, err = process.communicate(stdin, timeout=50)
        assert process.returncode == code, (arguments, out, err)
        out = out.replace(" from default namespace\n", "\n")  # only newer versions print it
        return out if code == 0 else out + err

    def __call__(self, line: str, stdin: str = "", code: int = 0) -> str:
        return self.run(*line.split(), stdin=stdin, code=code)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.needs(name)) for name in ("kubectl", "kubectl-1.34")
    ],
)
def kubectl(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubectl]:
    home = tmp_path_factory.mktemp("kubectl")
    config = home / "kubeconfig"
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from listwatch.apiserver.command import apiserver_command as c; c()",
            "--kubeconfig",
            str(config),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline().startswith("listening on ")
        yield Kubectl(components.path(request.param), config, home)
        server.terminate()
        assert server.wait(50) == 0


def columns(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_objects_are_created_shown_and_deleted(kubectl: Kubectl) -> None:
    assert kubectl("create configmap c1 --from-literal=k=v") == "configmap/c1 created\n"
    assert kubectl("get cm c1 -o jsonpath={.data.k}") == "v"
    assert columns(kubectl("get cm"))[0] == ["NAME", "DATA", "AGE"]
    assert "k: v" in kubectl("get cm c1 -o yaml")
    assert kubectl("get cm c1 -o name") == "configmap/c1\n"
    assert kubectl("label cm c1 x=1") == "configmap/c1 labeled\n"
    assert kubectl("annotate cm c1 note=hello") == "configmap/c1 annotated\n"
    assert columns(kubectl("get cm -l x=1 --no-headers"))[0][:2] == ["c1", "1"]
    assert kubectl("delete cm c1") == 'configmap "c1" deleted\n'
    assert "(NotFound)" in kubectl("get cm c1", code=1)


def test_the_imperative_commands_that_send_protobuf_work(kubectl: Kubectl) -> None:
    assert kubectl("create namespace other") == "namespace/other created\n"
    assert kubectl("create secret generic s1 --from-literal=k=v") == "secret/s1 created\n"
    assert kubectl("get secret s1 -o jsonpath={.data.k}") == "dg=="
    assert kubectl("create serviceaccount a1") == "serviceaccount/a1 created\n"
    made = kubectl("create deployment d1 --image=registry.example/d:1 --port=80 --replicas=3")
    assert made == "deployment.apps/d1 created\n"
    assert kubectl("get deployment d1 -o jsonpath={.spec.replicas}") == "3"
    assert "registry.example/d:1" in kubectl("get deployments -o wide")
    assert "Replicas:               3 desired" in kubectl("describe deployment d1")
    assert kubectl("delete deployment d1") == 'deployment.apps "d1" deleted\n'


def test_apply_creates_changes_and_leaves_alone(kubectl: Kubectl) -> None:
    assert kubectl("apply -f -", _MANIFEST) == "deployment.apps/web created\n"
    assert kubectl("apply -f -", _MANIFEST) == "deployment.apps/web unchanged\n"
    changed = _MANIFEST.replace(", tier: front", "").replace("replicas: 2", "replicas: 5")
    difference = kubectl("diff -f -", changed, code=1)
    changes = [line for line in difference.splitlines() if line[:2] in {"- ", "+ "}]
    assert "-  replicas: 2" in changes
    assert "+  replicas: 5" in changes
    assert "-    tier: front" in changes
    assert kubectl("apply -f -", changed) == "deployment.apps/web configured\n"
    shown = kubectl("get deployment web -o jsonpath={.metadata.labels}{.spec.replicas}")
    assert shown == '{"app":"web"}5'
    dry = kubectl("apply --dry-run=server -f -", _MANIFEST)
    assert dry == "deployment.apps/web configured (server dry run)\n"
    assert kubectl("get deployment web -o jsonpath={.spec.replicas}") == "5"


def test_server_side_apply_takes_over_and_conflicts(kubectl: Kubectl) -> None:
    manifest = _manifest("ssa")
    kubectl("apply -f -", manifest)
    for _ in range(2):
        applied = kubectl("apply --server-side -f -", manifest)
        assert applied == "deployment.apps/ssa serverside-applied\n"
    kubectl("scale deployment ssa --replicas=7")
    refused = kubectl("apply --server-side -f -", manifest, code=1)
    assert "conflict" in refused
    assert ".spec.replicas" in refused
    kubectl("apply --server-side --force-conflicts -f -", manifest)
    assert kubectl("get deployment ssa -o jsonpath={.spec.replicas}") == "2"


def test_edits_scale_and_rollouts_change_the_spec(kubectl: Kubectl) -> None:
    kubectl("apply -f -", _manifest("ed"))
    kubectl("set image deployment/ed web=registry.example/web:2")
    kubectl("scale deployment ed --replicas=4")
    kubectl("rollout restart deployment/ed")
    kubectl.run("patch", "deployment", "ed", "-p", '{"spec":{"paused":true}}')
    shown = kubectl("get deployment ed -o jsonpath={.spec.replicas},{.spec.paused},{.spec..image}")
    assert shown == "4,true,registry.example/web:2"
    replaced = kubectl("replace -f -", _manifest("ed"))
    assert replaced == "deployment.apps/ed replaced\n"


def test_a_wait_for_a_value_ends(kubectl: Kubectl) -> None:
    kubectl.since(23, "kubectl waits for a jsonpath")
    kubectl("apply -f -", _manifest("value"))
    assert "condition met" in kubectl(
        "wait --for=jsonpath={.spec.replicas}=2 deployment/value --timeout=45s"
    )


def test_waits_end_with_the_condition_the_deletion_or_the_time(kubectl: Kubectl) -> None:
    kubectl("run waited --image=i:1")
    ended = kubectl("wait --for=condition=Ready pod/waited --timeout=1s", code=1)
    assert "timed out waiting for the condition on pods/waited" in ended
    wait = kubectl.start("wait", "--for=delete", "pod/waited", "--timeout=45s")
    kubectl("delete pod waited --grace-period=0 --force")
    out, err = wait.communicate(timeout=50)
    # The wait may begin after the deletion. Old kubectls then report NotFound or no matching
    # resources, depending on how far they got.
    begun_late = "(NotFound)" in err or "no matching resources found" in err
    assert "condition met" in out or begun_late or (wait.returncode, out, err) == (0, "", "")


def test_deletions_cascade_and_wait(kubectl: Kubectl) -> None:
    kubectl("create namespace gone")
    kubectl("create configmap x -n gone")
    assert kubectl("delete namespace gone") == 'namespace "gone" deleted\n'
    assert "(NotFound)" in kubectl("get namespace gone", code=1)
    kubectl("run p1 --image=i:1")
    forced = kubectl("delete pod p1 --grace-period=0 --force")
    assert forced == 'pod "p1" force deleted\n'
    kubectl("apply -f -", _manifest("fg"))
    kubectl("delete deployment fg --cascade=foreground")
    kubectl("create namespace all")  # other tests have objects in the default one
    kubectl("create configmap a1 -n all")
    kubectl("create configmap a2 -n all")
    assert kubectl("delete cm --all -n all").count("deleted") == 2


def test_a_watch_prints_changes(kubectl: Kubectl) -> None:
    kubectl("create namespace watched")  # other tests have objects in the default one
    kubectl("create configmap w0 -n watched")
    watch = kubectl.start("get", "configmaps", "-n", "watched", "-w", "-o", "name")
    assert watch.stdout is not None
    # The watch starts at the version of the printed list, so it misses nothing after this.
    assert watch.stdout.readline() == "configmap/w0\n"
    kubectl("create configmap w1 -n watched")
    assert watch.stdout.readline() == "configmap/w1\n"
    kubectl("delete configmap w1 -n watched")
    assert watch.stdout.readline() == "configmap/w1\n"
    watch.terminate()
    watch.communicate(timeout=50)


def test_discovery_and_explain_know_the_kinds(kubectl: Kubectl) -> None:
    assert "apps/v1" in kubectl("api-versions").splitlines()
    resources = columns(kubectl("api-resources --no-headers"))
    assert ["deployments", "deploy", "apps/v1", "true", "Deployment"] in resources
    assert ["configmaps", "cm", "v1", "true", "ConfigMap"] in resources
    listed = kubectl("api-resources -o name --namespaced=false").split()
    assert "nodes" in listed
    assert "pods" not in listed
    explained = " ".join(kubectl("explain pod.spec.dnsPolicy").split())
    assert "FIELD: dnsPolicy <string>" in explained
    assert "maxSurge" in kubectl("explain deployment --recursive")
    assert "v1.36" in kubectl("version")
    assert "doesn't have a resource type" in kubectl("get nopes", code=1)


def test_custom_resources_are_applied_explained_and_printed(kubectl: Kubectl) -> None:
    kubectl("apply -f -", _GADGETS)
    kubectl("wait --for=condition=Established crd/gadgets.example.com --timeout=45s")
    gadget = "apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: g1}\nspec: {size: 3}\n"
    assert kubectl("apply -f -", gadget) == "gadget.example.com/g1 created\n"
    assert kubectl("apply -f -", gadget) == "gadget.example.com/g1 unchanged\n"
    assert kubectl("apply -f -", gadget.replace("3", "4")) == "gadget.example.com/g1 configured\n"
    assert columns(kubectl("get gd")) == [["NAME", "SIZE"], ["g1", "4"]]
    assert "how big" in kubectl("explain gadget.spec.size")
    refused = kubectl("apply -f -", gadget.replace("3", '"big"'), code=1)
    assert "spec.size" in refused
    assert kubectl("delete gadget g1") == 'gadget.example.com "g1" deleted\n'
    kubectl("delete crd gadgets.example.com")


def test_strict_validation_names_unknown_fields(kubectl: Kubectl) -> None:
    wrong = _manifest("bad").replace("replicas: 2", "replicaz: 2")
    refused = kubectl("create -f -", wrong, code=1)
    # Since 1.25 the server reports it; before, kubectl did, from the OpenAPI document.
    assert 'unknown field "spec.replicaz"' in refused or (
        kubectl.is_before(25)
        and 'ValidationError(Deployment.spec): unknown field "replicaz"' in refused
    )


def test_who_one_is_is_told(kubectl: Kubectl) -> None:
    kubectl.since(26, "kubectl has `auth whoami`")
    assert "kubernetes-admin" in kubectl("auth whoami")


def test_access_is_told(kubectl: Kubectl) -> None:
    assert kubectl("auth can-i create pods") == "yes\n"
    assert "*.*" in kubectl("auth can-i --list")
    assert kubectl("get --raw /healthz") == "ok"


def test_chunks_are_put_together(kubectl: Kubectl) -> None:
    for number in range(5):
        kubectl(f"create configmap chunk{number}")
    names = kubectl("get cm --chunk-size=2 -o name").splitlines()
    assert [name for name in names if "chunk" in name] == [
        f"configmap/chunk{number}" for number in range(5)
    ]


def test_labels_are_set_listed_and_removed(kubectl: Kubectl) -> None:
    kubectl("create configmap l1")
    kubectl("create configmap l2")
    kubectl("label configmap l1 l2 tier=front")
    assert kubectl("get cm -l tier=front -o name").split() == ["configmap/l1", "configmap/l2"]
    refused = kubectl("label configmap l1 tier=back", code=1)
    assert "already has a value (front)" in refused
    kubectl("label configmap l1 tier=back --overwrite")
    kubectl("label configmap l2 tier-")
    assert kubectl("get cm -l tier -o name").split() == ["configmap/l1"]
    assert columns(kubectl("get cm -l tier=back --show-labels --no-headers"))[0][-1] == "tier=back"


def test_a_diff_of_what_is_the_same_says_nothing_and_of_what_is_new_everything(
    kubectl: Kubectl,
) -> None:
    fresh = _manifest("diffed")
    assert "+  name: diffed" in kubectl("diff -f -", fresh, code=1)
    assert "(NotFound)" in kubectl("get deployment diffed", code=1)
    kubectl("apply -f -", fresh)
    assert kubectl("diff -f -", fresh) == ""
    kubectl.since(26, "kubectl leaves the owners of fields out of a diff")
    # The server rewrites the annotation of client-side apply, slightly differently.
    assert "last-applied-configuration" in kubectl("diff --server-side -f -", fresh, code=1)
    kubectl("apply --server-side -f -", fresh)
    assert kubectl("diff --server-side -f -", fresh) == ""


def test_a_status_is_patched_through_its_subresource(kubectl: Kubectl) -> None:
    kubectl.since(24, "kubectl patches subresources")
    kubectl("apply -f -", _manifest("st"))
    patch = '{"status":{"replicas":2,"readyReplicas":2}}'
    kubectl.run("patch", "deployment", "st", "--subresource=status", "--type=merge", "-p", patch)
    assert kubectl("get deployment st -o jsonpath={.status.readyReplicas}") == "2"
    assert columns(kubectl("get deployment st --no-headers"))[0][1] == "2/2"
    kubectl("wait --for=jsonpath={.status.readyReplicas}=2 deployment/st --timeout=45s")


def test_a_pruning_apply_removes_what_is_no_longer_there(kubectl: Kubectl) -> None:
    kubectl.since(26, "kubectl names what it may prune by this option")
    both = "---\n".join(
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{set: p}}}}\n"
        for name in ("prune1", "prune2")
    )
    kubectl("apply -f - --prune -l set=p --prune-allowlist=core/v1/ConfigMap", both)
    kubectl("apply -f - --prune -l set=p --prune-allowlist=core/v1/ConfigMap", both.split("---")[0])
    assert kubectl("get cm -l set=p -o name").split() == ["configmap/prune1"]


def test_events_of_an_object_are_shown(kubectl: Kubectl) -> None:
    kubectl.since(26, "kubectl has `events`")
    kubectl("create configmap told")
    event = (
        "apiVersion: v1\nkind: Event\nmetadata: {name: told.1, namespace: default}\n"
        "involvedObject: {apiVersion: v1, kind: ConfigMap, name: told, namespace: default}\n"
        "reason: Told\nmessage: hello\ntype: Normal\ncount: 1\n"
        "firstTimestamp: 2026-01-01T00:00:00Z\nlastTimestamp: 2026-01-01T00:00:00Z\n"
    )
    kubectl("create -f -", event)
    assert columns(kubectl("events --for configmap/told --no-headers"))[0][-1] == "hello"
