"""Applies the Pod Security Standards to writes.

The rules are those of `pod-security-admission`: pods are refused, workloads cause warnings.
"""

from collections.abc import Callable, Mapping
from typing import Any

from listwatch.apiserver import refusal
from listwatch.apiserver.admission import pod_security
from listwatch.apiserver.admission.advice import pod_spec_of
from listwatch.apiserver.admission.plugins import Lookup
from listwatch.apiserver.kinds.resources import APIResource

Object = dict[str, Any]


def secure(
    resource: APIResource,
    new: Object,
    old: Object | None,
    subresource: str,
    labels_of: Callable[[str], Mapping[str, str]],
    lookup: Lookup,
) -> list[str]:
    """Return warnings for the client of a write.

    Args:
        resource: the written object's.
        new: the new object.
        old: the previous object; None for a creation.
        subresource: the subresource that is written; "" for the object.
        labels_of: returns the labels of a namespace.
        lookup: returns the objects of a kind in a namespace.

    Raises:
        ForbiddenError: 403, the namespace forbids the pod.
        InvalidError: 422, a namespace asks for an invalid level.
    """
    if resource.storage == "namespaces":
        return _of_namespace(resource, new, old, lookup)
    found = pod_spec_of(resource, new)
    if found is None or subresource not in {"", "ephemeralcontainers"}:
        return []
    spec, metadata = found
    policy = pod_security.policy_of(labels_of(new["metadata"].get("namespace", "")))
    broken = None
    if resource.storage == "pods":
        if old is not None and not pod_security.matters(spec, old.get("spec") or {}):
            return []
        broken = pod_security.violations(spec, metadata, policy.enforce)
        if broken:
            why = pod_security.told(broken, policy.enforce)
            raise refusal.forbidden_object(resource, metadata.get("name", ""), f"violates {why}")
    if broken is None or policy.warn != policy.enforce:
        broken = pod_security.violations(spec, metadata, policy.warn)
    return [f"would violate {pod_security.told(broken, policy.warn)}"] if broken else []


def _of_namespace(
    resource: APIResource, new: Object, old: Object | None, lookup: Lookup
) -> list[str]:
    name, labels = new["metadata"]["name"], new["metadata"].get("labels") or {}
    before = {} if old is None else old["metadata"].get("labels") or {}
    causes = pod_security.label_causes(labels, before)
    if causes:
        raise refusal.invalid_object(resource, name, causes)
    wanted, had = (pod_security.policy_of(each).enforce for each in (labels, before))
    if old is None or wanted == had:
        return []
    return pod_security.warnings_of_pods(lookup("pods", name), name, wanted)
