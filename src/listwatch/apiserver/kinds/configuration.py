"""ConfigMap, Secret and ServiceAccount."""

import base64
from collections.abc import Iterable, Mapping

from listwatch.apiserver.kinds.cells import count, field
from listwatch.apiserver.kinds.kind import Kind, Object, View, carry, paths
from listwatch.apiserver.kinds.rules import config_key
from listwatch.schema.causes import Cause, forbidden_value, invalid_value, required
from listwatch.schema.parsing import parse_json


def _default_secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        data = obj.setdefault("data", {})
        for key, value in plain.items():
            data[key] = base64.b64encode(value.encode()).decode()


#: Maximum bytes of all values of a config map or a secret (core.MaxSecretSize).
_DATA_LIMIT = 1 << 20


def _check_config_map(obj: View) -> list[Cause]:
    causes = []
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    for name, part in (("data", data), ("binaryData", binary)):
        for key in part:
            causes += config_key(f"{name}[{key}]", key)
    causes += [
        invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData")
        for key in data
        if key in binary
    ]
    size = sum(len(value.encode()) for value in data.values())
    size += _decoded_size(binary)
    # Go's field.Path prints a path of one empty name, which ValidateConfigMap uses, as "[]"
    # (kubernetes/pkg/apis/core/validation/validation.go)
    return causes + _too_long("[]", size)


def _decoded_size(data: Mapping[str, str]) -> int:
    return sum(len(value) * 3 // 4 - value[-2:].count("=") for value in data.values())


def _too_long(path: str, size: int) -> list[Cause]:
    if size <= _DATA_LIMIT:
        return []
    return [Cause(path, "FieldValueTooLong", f"Too long: may not be more than {_DATA_LIMIT} bytes")]


_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _check_secret(obj: View) -> list[Cause]:
    data = obj.get("data") or {}
    causes = [cause for key in data for cause in config_key(f"data[{key}]", key)]
    causes += _too_long("data", _decoded_size(data))
    causes += [
        required(f"data[{key}]")
        for key in _SECRET_KEYS.get(obj.get("type", ""), ())
        if key not in data or (key == "ssh-privatekey" and not data[key])
    ]
    kind = obj.get("type", "")
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & data.keys():
        causes += [required("data[username]"), required("data[password]")]
    if kind == "kubernetes.io/service-account-token":
        key = "kubernetes.io/service-account.name"
        if not (obj["metadata"].get("annotations") or {}).get(key):
            causes.append(required(f"metadata.annotations[{key}]"))
    if kind in {"kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"}:
        for key in _SECRET_KEYS[kind]:
            problem = _json_problem(base64.b64decode(data[key])) if key in data else None
            if problem is not None:
                hidden = "<secret contents redacted>"
                causes.append(invalid_value(f"data[{key}]", hidden, problem))
    return causes


def _json_problem(data: bytes) -> str | None:
    try:
        found = parse_json(data)
    except ValueError as error:
        return str(error)
    if found is None or isinstance(found, dict):
        return None
    return "json: cannot unmarshal value into Go value of type map[string]interface {}"


def _check_config_map_update(new: View, old: View) -> list[Cause]:
    return _immutable(new, old, ("data", "binaryData"))


def _check_secret_update(new: View, old: View) -> list[Cause]:
    causes = _immutable(new, old, ("data",))
    if new.get("type") != old.get("type"):
        causes.insert(0, invalid_value("type", new.get("type"), "field is immutable"))
    return causes


def _carry_type(new: Object, old: View) -> None:
    if not new.get("type"):
        carry(new, old, "type")


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "secrets": Kind(
        checks_whole=True,
        carry=_carry_type,
        fields=paths("type"),
        defaults=_default_secret,
        rule=_check_secret,
        update_rule=_check_secret_update,
        cells={"Type": field("type"), "Data": count("data")},
    ),
    "serviceaccounts": Kind(checks_whole=True, returns_deleted=True),
    "configmaps": Kind(
        checks_whole=True,
        rule=_check_config_map,
        update_rule=_check_config_map_update,
        cells={
            "Data": lambda obj, _: len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
        },
    ),
}


def _immutable(new: View, old: View, fields: Iterable[str]) -> list[Cause]:
    if not old.get("immutable"):
        return []
    why = "field is immutable when `immutable` is set"
    causes = [] if new.get("immutable") else [forbidden_value("immutable", why)]
    return causes + [
        forbidden_value(field, why) for field in fields if new.get(field) != old.get(field)
    ]
