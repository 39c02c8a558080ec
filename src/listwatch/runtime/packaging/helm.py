"""A program's manifests as a Helm chart.

Objects are made with words in place of the chart's values, written as YAML, and the words then
replaced by template actions. So a chart and a kustomize base contain the same objects.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import listwatch.version
from listwatch.errors import ConfigError
from listwatch.runtime.packaging.objects import ProgramObjects, Setting
from listwatch.runtime.packaging.program import PackagedProgram
from listwatch.runtime.packaging.rbac import Account, to_yaml

#: A version as https://semver.org defines it, without leading zeros of a pre-release's numbers.
_SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_WORD: Final = "listwatch-value-"
_NAMESPACE: Final = f"{_WORD}namespace"
_PLACE: Final = f"{_WORD}place"
_IMAGE: Final = f"{_WORD}image"
_PULL_POLICY: Final = f"{_WORD}pull-policy"
_REPLICAS: Final = f"{_WORD}replicas"
_RESOURCES: Final = f"{_WORD}resources"
_WATCHED: Final = f"{_WORD}watched"

_SCALARS: Final[Mapping[str, str]] = {
    _NAMESPACE: "{{ .Values.namespace | default .Release.Namespace | quote }}",
    _PLACE: "{{ $place | quote }}",
    _IMAGE: '{{ printf "%s:%v" .Values.image.repository .Values.image.tag | quote }}',
    _PULL_POLICY: "{{ .Values.image.pullPolicy | quote }}",
    _REPLICAS: "{{ .Values.replicas }}",
}
_BLOCKS: Final[Mapping[str, Callable[[str], str]]] = {
    f"resources: {_RESOURCES}": lambda space: (
        f"{space}resources:\n"
        f"{space}  {{{{- toYaml .Values.resources | nindent {len(space) + 2} }}}}\n"
    ),
    f"- {_WATCHED}": lambda space: (
        f"{space}{{{{- range .Values.watchNamespaces }}}}\n"
        f'{space}- {{{{ printf "--namespace=%s" . | quote }}}}\n'
        f"{space}{{{{- end }}}}\n"
    ),
}
_LINE: Final = re.compile(rf"^( *)({'|'.join(map(re.escape, _BLOCKS))})\n", re.MULTILINE)
_SCALAR: Final = re.compile("|".join(sorted(map(re.escape, _SCALARS), reverse=True)))


def helm_chart(program: PackagedProgram, setting: Setting, *, version: str) -> dict[str, str]:
    """Return the text of each file of a chart.

    Args:
        program: the program.
        setting: the default values; the namespace is the release's.
        version: of the chart and the program.

    Raises:
        ConfigError: see `ProgramObjects`; or the version is none of a chart, or a definition
            contains a word that stands for a value.
    """
    if not _SEMVER.fullmatch(version):
        raise ConfigError(
            f"{version!r} can't be the version of a chart: give three numbers, such as 1.2.0"
        )
    if _WORD in to_yaml(program.definitions):
        raise ConfigError(
            f"a definition contains {_WORD!r}, which stands for values of the chart: change that "
            "description or default"
        )
    app = program.app
    words = Setting(
        namespace=_NAMESPACE,
        image=_IMAGE,
        pull_policy=_PULL_POLICY,
        replicas=_REPLICAS,
        resources=_RESOURCES,
        arguments=(*setting.arguments, _WATCHED),
    )
    objects = ProgramObjects(app, program.file, words)

    def text(found: Iterable[Mapping[str, Any]]) -> str:
        return _template(to_yaml(objects.labelled(found)))

    definitions = [_kept(each) for each in objects.definitions(program.definitions)]
    templates = {
        "crds.yaml": _block("if .Values.crds.install", text(definitions)) if definitions else "",
        "rbac.yaml": _rbac(program, Account(app.name, _NAMESPACE), text),
        "service.yaml": text(objects.services()),
        "deployment.yaml": text([objects.deployment()]),
        "poddisruptionbudget.yaml": _block(
            "if gt (int .Values.replicas) 1", text([objects.disruption_budget()])
        ),
        "webhooks.yaml": text(objects.webhooks()) if app.webhooks else "",
        "servicemonitor.yaml": _block(
            "if .Values.serviceMonitor.enabled", text([objects.service_monitor()])
        ),
    }
    chart = {
        "apiVersion": "v2",
        "name": app.name,
        "description": f"The controller {app.name}",
        "type": "application",
        "version": version,
        "appVersion": version,
        "annotations": {"listwatch/version": listwatch.version.__version__},
    }
    return {
        "Chart.yaml": to_yaml([chart]),
        "values.yaml": _values(setting, shares=bool(app.lease), defines=bool(definitions)),
        **{f"templates/{name}": made for name, made in templates.items() if made},
    }


def _rbac(
    program: PackagedProgram,
    account: Account,
    text: Callable[[Iterable[Mapping[str, Any]]], str],
) -> str:
    rights = program.rights
    narrow = rights.narrowed([_PLACE], program.scope_of)
    fixed = [
        obj
        for place, given in sorted(rights.in_namespaces.items())
        for obj in account.role(place, given)
    ]
    always = [account.manifest(), *account.role(_NAMESPACE, narrow.own, "-own"), *fixed]
    some = text(account.cluster_role(narrow.everywhere)) if narrow.everywhere else ""
    if place := account.role(_PLACE, narrow.in_namespaces.get(_PLACE, set()), "-watched"):
        some += _block("range $place := .Values.watchNamespaces", _in_range(text(place)))
    everything = text(account.cluster_role(rights.everywhere))
    chosen = _block("if .Values.watchNamespaces", f"{some}{{{{- else }}}}\n{everything}")
    return f"{text(always)}{chosen}"


def _in_range(template: str) -> str:
    """Return a template for a loop, in which `.` is something else."""
    return template.replace(" .Values.", " $.Values.").replace(" .Release.", " $.Release.")


def _kept(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition that outlives its release, since its objects would go with it."""
    metadata = definition["metadata"]
    annotations = {**metadata.get("annotations", {}), "helm.sh/resource-policy": "keep"}
    return {**definition, "metadata": {**metadata, "annotations": annotations}}


def _block(head: str, body: str) -> str:
    return f"{{{{- {head} }}}}\n{body}{{{{- end }}}}\n"


def _template(yaml: str) -> str:
    """Return YAML with template actions in place of words; other braces stay as they are."""
    escaped = yaml.replace("{{", '{{ "{{" }}')
    blocks = _LINE.sub(lambda found: _BLOCKS[found[2]](found[1]), escaped)
    return _SCALAR.sub(lambda found: _SCALARS[found[0]], blocks)


def _values(setting: Setting, *, shares: bool, defines: bool) -> str:
    repository, colon, tag = setting.image.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = setting.image, "latest"
    alone = "" if shares else " The program elects no leader: leave this at 1."
    parts = [
        f"""# The image that contains the program.
image:
  repository: {json.dumps(repository)}
  tag: {json.dumps(tag)}
  pullPolicy: IfNotPresent

# Number of pods.{alone}
replicas: {setting.replicas}

{to_yaml([{"resources": setting.resources}]).removeprefix("---").strip()}

# The namespace of the program; empty for that of the release.
namespace: ""

# The namespaces that the program watches, and has rights in; none for all.
watchNamespaces: []

# Whether Prometheus' operator shall read the metrics.
serviceMonitor:
  enabled: false
"""
    ]
    if defines:
        parts.append(
            """
# Whether to install the CustomResourceDefinitions. They stay when the release is uninstalled.
crds:
  install: true
"""
        )
    return "".join(parts)
