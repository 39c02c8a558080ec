"""kubectl on running workloads: rollouts, waits and drains."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import components
from listwatch.testing import APIServer, Workloads

pytestmark = pytest.mark.needs("kubectl")

WEB = """
apiVersion: apps/v1
kind: {kind}
metadata: {{name: web}}
spec:
  replicas: 2
  serviceName: web
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{containers: [{{name: web, image: "web:1"}}]}}
"""


class Kubectl:
    """Run kubectl against one server."""

    def __init__(self, kubeconfig: Path) -> None:
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)}

    def since(self, minor: int, why: str) -> None:
        """Skip the test if this kubectl is older."""
        version = json.loads(self("version --client -o json"))["clientVersion"]
        if int(version["minor"].rstrip("+")) < minor:
            pytest.skip(f"{why}, since 1.{minor}; this one is 1.{version['minor']}")

    def __call__(self, line: str, stdin: str = "", code: int = 0) -> str:
        """Run a command line and return its output."""
        ended = subprocess.run(
            [components.path("kubectl"), *line.split()],
            input=stdin,
            capture_output=True,
            text=True,
            env=self._env,
            timeout=50,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    with APIServer(workloads=Workloads(nodes=2)) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(server.kubeconfig())
        yield Kubectl(kubeconfig)


def test_a_rollout_is_waited_for_shown_and_undone(kubectl: Kubectl) -> None:
    kubectl("apply -f -", WEB.format(kind="Deployment").replace("  serviceName: web\n", ""))
    assert "successfully rolled out" in kubectl("rollout status deployment/web --timeout=45s")
    kubectl("wait --for=condition=Available deployment/web --timeout=45s")
    kubectl("set image deployment/web web=web:2")
    kubectl("rollout status deployment/web --timeout=45s")
    assert kubectl("rollout history deployment/web").split()[-4:] == ["1", "<none>", "2", "<none>"]
    kubectl("rollout undo deployment/web")
    kubectl("rollout status deployment/web --timeout=45s")
    images = kubectl("get pods -l app=web -o jsonpath={..image}").split()
    assert set(images) == {"web:1"}
    kubectl("rollout restart deployment/web")
    kubectl("rollout status deployment/web --timeout=45s")
    ready = kubectl("get deployment web --no-headers").split()[1:4]
    assert ready == ["2/2", "2", "2"]


def test_a_stateful_set_is_waited_for_and_undone(kubectl: Kubectl) -> None:
    kubectl("apply -f -", WEB.format(kind="StatefulSet"))
    kubectl("rollout status statefulset/web --timeout=45s")
    kubectl("set image statefulset/web web=web:2")
    assert "roll out complete: 2 new pods" in kubectl(
        "rollout status statefulset/web --timeout=45s"
    )
    kubectl("rollout undo statefulset/web")
    kubectl("rollout status statefulset/web --timeout=45s")
    assert set(kubectl("get pods -o jsonpath={..image}").split()) == {"web:1"}


def test_a_job_is_waited_for(kubectl: Kubectl) -> None:
    kubectl("create job sum --image=sum:1")
    assert "condition met" in kubectl("wait --for=condition=Complete job/sum --timeout=45s")


def test_a_drained_node_has_no_pods_and_these_run_elsewhere(kubectl: Kubectl) -> None:
    kubectl.since(22, "kubectl evicts by a version of policy that servers still have")
    kubectl("create deployment web --image=web:1 --replicas=4")
    kubectl("rollout status deployment/web --timeout=45s")
    assert "node/node-0 drained" in kubectl("drain node-0 --timeout=45s")
    kubectl("rollout status deployment/web --timeout=45s")
    assert set(kubectl("get pods -o jsonpath={..nodeName}").split()) == {"node-1"}
    assert "SchedulingDisabled" in kubectl("get node node-0")
    kubectl("uncordon node-0")


def test_a_service_describes_its_endpoints(kubectl: Kubectl) -> None:
    kubectl("create deployment web --image=web:1")
    kubectl("expose deployment web --port=80 --target-port=8080")
    kubectl("rollout status deployment/web --timeout=45s")
    address = kubectl("get pods -o jsonpath={.items[0].status.podIP}")
    assert f"{address}:8080" in kubectl("describe service web")
