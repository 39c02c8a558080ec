"""A program's manifests as a kustomize base."""

from collections.abc import Mapping, Sequence
from typing import Any

from listwatch.runtime.packaging.objects import ProgramObjects, Setting
from listwatch.runtime.packaging.program import PackagedProgram
from listwatch.runtime.packaging.rbac import role_manifests, to_yaml


def kustomize_base(
    program: PackagedProgram,
    setting: Setting,
    *,
    watched: Sequence[str] = (),
    service_monitor: bool = False,
) -> dict[str, list[dict[str, Any]]]:
    """Return the objects of each file, without the kustomization itself.

    Args:
        program: the program.
        setting: where and how it runs.
        watched: the namespaces that it watches; none for all.
        service_monitor: add a ServiceMonitor.

    Raises:
        ConfigError: see `ProgramObjects`.
    """
    app = program.app
    objects = ProgramObjects(app, program.file, setting)
    rights = program.rights.narrowed(watched, program.scope_of)
    files: Mapping[str, Sequence[Mapping[str, Any]]] = {
        "namespace.yaml": objects.namespace(),
        "crds.yaml": objects.definitions(program.definitions),
        "rbac.yaml": role_manifests(app.name, setting.namespace, rights),
        "service.yaml": objects.services(),
        "deployment.yaml": [objects.deployment()],
        "poddisruptionbudget.yaml": [objects.disruption_budget()],
        "webhooks.yaml": objects.webhooks(),
        "servicemonitor.yaml": [objects.service_monitor()] if service_monitor else [],
    }
    return {name: objects.labelled(found) for name, found in files.items() if found}


def base_texts(base: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Return the text of each file of a base, with its kustomization."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(base),
    }
    texts = {name: to_yaml(objects) for name, objects in base.items()}
    return {**texts, "kustomization.yaml": to_yaml([kustomization])}
