import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from listwatch.resources import ObjectMeta
from listwatch.webhooks import AdmissionRequest, Denied, User
from webhooks.websites import Website, WebsiteSpec

RECORDED = Path(__file__).parents[1] / "data/conformance/webhooks"


def recorded() -> Iterator[dict[str, Any]]:
    """Yield every request that a real server has sent to a webhook in the recordings."""
    for path in sorted(RECORDED.glob("*.json.gz")):
        for scenario in json.loads(gzip.decompress(path.read_bytes()))["scenarios"]:
            for step in scenario["steps"]:
                for call in (step.get("expect") or {}).get("calls") or ():
                    if isinstance(call.get("body"), dict) and "request" in call["body"]:
                        yield call["body"]["request"]


def test_every_request_of_a_real_server_is_understood() -> None:
    seen = set()
    for request in recorded():
        found: AdmissionRequest[Any] = AdmissionRequest(request, lambda value: value)
        assert found.operation == request["operation"]
        assert found.name == request.get("name", "")
        assert found.dry_run == request["dryRun"]
        assert found.user.name == request["userInfo"]["username"]
        expected = request["oldObject"] if found.operation == "DELETE" else request["object"]
        assert found.obj == expected
        assert found.old == request["oldObject"]
        seen.add((found.operation, found.subresource))
    assert {operation for operation, _ in seen} == {"CREATE", "UPDATE", "DELETE"}
    assert ("UPDATE", "scale") in seen


def check_size(request: AdmissionRequest[Website]) -> None:
    if request.old is not None and request.obj.spec.size < request.old.spec.size:
        raise Denied(f"{request.user.name} must not shrink {request.name}")


def test_a_hook_is_called_in_a_test_without_a_server() -> None:
    def website(size: int) -> Website:
        return Website(ObjectMeta(name="shop"), WebsiteSpec(size=size))

    check_size(AdmissionRequest.of(website(2), website(1)))
    with pytest.raises(Denied, match="jane must not shrink shop"):
        check_size(AdmissionRequest.of(website(1), website(2), user=User(name="jane")))


def test_a_request_for_a_test_has_what_a_server_s_has() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b"}}
    created = AdmissionRequest.of(pod, dry_run=True, options={"fieldManager": "x"})
    assert (created.operation, created.obj, created.old) == ("CREATE", pod, None)
    assert (created.name, created.namespace, str(created.kind)) == ("a", "b", "Pod")
    assert (str(created.resource), created.dry_run) == ("v1/pods", True)
    deleted = AdmissionRequest.of(pod, operation="DELETE")
    assert (deleted.obj, deleted.old) == (pod, pod)
    assert deleted.obj is not pod
