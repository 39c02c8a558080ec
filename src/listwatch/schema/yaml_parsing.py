"""YAML parsed like Go, with the error messages of Go's decoders."""

import re
from typing import Any

import msgspec
import yaml

#: Maximum nodes that YAML aliases may expand to; more for a long document.
_ALIASES_LIMIT = 100_000


def parse(data: bytes) -> Any:
    """Decode YAML.

    Raises:
        ValueError: in the words of the server.
    """
    try:
        value = _load_yaml(data)
    except yaml.YAMLError as error:
        line = _yaml_line(error)
        problem = getattr(error, "problem", None) or "cannot be read"
        if "nesting depth" in problem:  # libyaml's limit may come before Python's
            line, problem = "", "exceeded max depth"
        raise ValueError(f"error converting YAML to JSON: yaml: {line}{problem}") from None
    except RecursionError:
        raise ValueError("error converting YAML to JSON: yaml: exceeded max depth") from None
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"error converting YAML to JSON: {error}") from None


def _load_yaml(data: bytes) -> Any:
    loader = _Loader(data)
    try:
        # as for Go's decoder, the first of several documents counts
        node = loader.get_node() if loader.check_node() else None
        if node is None:
            return None
        if _expanded_size(node, {}) > max(_ALIASES_LIMIT, 10 * len(data)):
            raise yaml.MarkedYAMLError(problem="document contains excessive aliasing")
        return _with_text_keys(loader.construct_document(node))
    finally:
        loader.dispose()


def _with_text_keys(value: Any) -> Any:
    """Return a value whose keys are text: a key that YAML reads as a boolean becomes its word."""
    if isinstance(value, dict):
        return {_text_key(key): _with_text_keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_text_keys(each) for each in value]
    return value


def _text_key(key: Any) -> Any:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key) if isinstance(key, int) else key


def _expanded_size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of nodes with every alias expanded.

    A few hundred bytes can expand to gigabytes, each level repeating the one below. Go's parsers
    refuse that too (`yaml.v3/decode.go`, allowedAliasRatio).
    """
    size = known.get(id(node))
    if size is None:
        known[id(node)] = 0  # an anchor within itself is refused later
        size = 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                size += _expanded_size(key, known) + _expanded_size(value, known)
        elif isinstance(node, yaml.SequenceNode):
            for each in node.value:
                size += _expanded_size(each, known)
        known[id(node)] = size
    return size


def _yaml_line(error: yaml.YAMLError) -> str:
    # Go's parser counts lines differently: its scanner is one line ahead of its grammar
    mark = getattr(error, "problem_mark", None)
    number = 0 if mark is None else mark.line
    if number and isinstance(error, yaml.scanner.ScannerError):
        number += 1
    if not number:
        mark = getattr(error, "context_mark", None)
        number = 0 if mark is None else mark.line
    return f"line {number}: " if number else ""


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]  # chosen at run time
    """A safe loader that leaves timestamps as strings, as in JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 has these booleans; Go's parser accepts them and PyYAML does not
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("[yYnN]$"), list("yYnN"))
_Loader.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}
