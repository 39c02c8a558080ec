"""Writes renewed OIDC tokens into a kubeconfig and changes nothing else in it.

The two values are replaced in place. Comments, order, quotes, line ends, encoding, mode and owner
stay.
"""

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from listwatch.client import go_yaml
from listwatch.errors import ConfigError

#: Text that YAML accepts without quotes, without any special character.
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9._~+/=-]*")
#: An anchor or a tag before a value.
_PROPERTIES: Final = re.compile(r"(?:[&!][^\s,\[\]{}]*[ \t]+)+")
_ALIAS: Final = re.compile(r"\s*:\s+(\*[^\s,\[\]{}]+)")
_LINE_END: Final = re.compile(r"\r\n|\n|\r")


class _Edit(NamedTuple):
    begin: int
    end: int
    text: str


def write_tokens(kubeconfig: Path, user: str, *, id_token: str, refresh_token: str) -> None:
    """Write the renewed tokens of an OIDC user back; see `kubeconfig.save_tokens`."""
    path = kubeconfig.resolve()
    try:
        with _locked(path):
            content = path.read_bytes()
            tokens = {"id-token": id_token, "refresh-token": refresh_token}
            _replace(path, _with_tokens(path, content, user, tokens))
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{path} can't be updated: {words}") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = path.with_name(f"{path.name}.lock")  # client-go's, tools/clientcmd/config.go
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise ConfigError(f"{lock} cannot be created: {error.strerror}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    before = path.stat()
    descriptor, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)  # with mode 0600
    new = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            now = os.fstat(descriptor)
            if hasattr(os, "fchown"):  # not on Windows
                if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)  # it contains the tokens


def _with_tokens(path: Path, content: bytes, user: str, tokens: Mapping[str, str]) -> bytes:
    changed = ConfigError(f"{path} can't be updated: user {user!r} has changed")
    text, encoding = go_yaml.decode_text(content)
    try:
        root = go_yaml.compose(text)
        entry = None if root is None else _entry(root, user)
        if entry is None:
            raise ConfigError(f"{path}: user {user!r} no longer exists")
        settings = _settings(entry)
        if settings is None:
            raise changed
        expected = _expected(go_yaml.load(text), user, tokens)
        after = text
        for edit in sorted(_edits(text, settings, tokens), reverse=True):
            after = f"{after[: edit.begin]}{edit.text}{after[edit.end :]}"
        if go_yaml.load(after) != expected:
            raise ConfigError(
                f"{path} can't be updated: the tokens of user {user!r} share an anchor with "
                "another value; write them without the anchor"
            )
    except go_yaml.YAMLError as error:
        raise ConfigError(f"{path} can't be updated: invalid YAML: {error}") from None
    except (AttributeError, KeyError, TypeError):
        raise changed from None
    return after.encode(encoding)


def _expected(loaded: Any, user: str, tokens: Mapping[str, str]) -> object:
    """Return the file's value with the new tokens, and nothing else sharing their place."""
    users = list(loaded["users"])
    place = next(i for i, entry in enumerate(users) if entry.get("name") == user)
    account = users[place]["user"]
    provider = account["auth-provider"]
    provider = {**provider, "config": {**provider["config"], **tokens}}
    users[place] = {**users[place], "user": {**account, "auth-provider": provider}}
    return {**loaded, "users": users}


def _entry(root: Node, user: str) -> Node | None:
    users = _child(root, "users")
    entries: list[Node] = users.value if isinstance(users, SequenceNode) else []
    for entry in entries:
        name = _child(entry, "name")
        if name is not None and name.value == user:
            return entry
    return None


def _settings(entry: Node) -> MappingNode | None:
    """Return the node of a user's `auth-provider.config`."""
    node: Node | None = entry
    for key in ("user", "auth-provider", "config"):
        node = None if node is None else _child(node, key)
    return node if isinstance(node, MappingNode) else None


def _child(node: Node, key: str) -> Node | None:
    pair = _pair(node, key)
    return None if pair is None else pair[1]


def _pair(node: Node, key: str) -> tuple[Node, Node] | None:
    if not isinstance(node, MappingNode):
        return None
    return next((pair for pair in reversed(node.value) if pair[0].value == key), None)


def _edits(text: str, settings: MappingNode, tokens: Mapping[str, str]) -> Iterator[_Edit]:
    missing = []
    for key, token in tokens.items():
        pair = _pair(settings, key)
        if pair is None:
            missing.append((key, token))
        else:
            yield _exchange(text, *pair, token)
    if missing:
        yield _insertion(text, settings, missing)


def _exchange(text: str, key: Node, value: Node, token: str) -> _Edit:
    begin, end = value.start_mark.index, value.end_mark.index
    if begin < key.end_mark.index and (alias := _ALIAS.match(text, key.end_mark.index)):
        return _Edit(*alias.span(1), _scalar(token, None))
    if begin == end:  # nothing follows the colon
        return _Edit(begin, end, f" {_scalar(token, None)}")
    properties = _PROPERTIES.match(text, begin, end)
    begin = begin if properties is None else properties.end()
    style = value.style if isinstance(value, ScalarNode) else None
    new = _scalar(token, style if style in {"'", '"'} else None)
    if style in {"|", ">"}:  # it ends where the next line begins
        line_end = _LINE_END.search(text, begin, end)
        new += "" if line_end is None else line_end[0]
    return _Edit(begin, end, new)


def _insertion(text: str, settings: MappingNode, tokens: list[tuple[str, str]]) -> _Edit:
    if not settings.value:  # {}
        place = settings.end_mark.index - 1
        pairs = ", ".join(f"{json.dumps(key)}: {json.dumps(token)}" for key, token in tokens)
        return _Edit(place, place, pairs)
    first = settings.value[0][0].start_mark
    quote = '"' if text[first.index] == '"' else None  # JSON
    pairs_of = [
        f"{key if quote is None else json.dumps(key)}: {_scalar(token, quote)}"
        for key, token in tokens
    ]
    if settings.flow_style:
        separator = ", "
    else:
        line_end = _LINE_END.search(text)
        separator = f"{line_end[0] if line_end else chr(10)}{' ' * first.column}"
    return _Edit(first.index, first.index, "".join(pair + separator for pair in pairs_of))


def _scalar(token: str, style: str | None) -> str:
    """Return a token as YAML that Go parses as the same text."""
    if style == "'" and token.isprintable():
        return "'" + token.replace("'", "''") + "'"
    if style is None and _PLAIN.fullmatch(token) and go_yaml.scalar_value(token)[0] == "str":
        return token
    return json.dumps(token, ensure_ascii=not token.isprintable())
