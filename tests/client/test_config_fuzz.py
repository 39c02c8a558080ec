"""With any kubeconfig, `listwatch config` ends with one line and no secret in it."""

import base64
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from listwatch.client.command import config_command

SECRET = "sw0rdfish-planted"
SECRETS = (SECRET, base64.b64encode(SECRET.encode()).decode().rstrip("="))
FUZZ = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "n"}}],
    "clusters": [
        {
            "name": "c",
            "cluster": {
                "server": "https://127.0.0.1:1",
                "certificate-authority": "ca",
                "tls-server-name": "n",
                "proxy-url": f"http://u:{SECRET}@127.0.0.1:1",
                "disable-compression": True,
                "extensions": [
                    {"name": "client.authentication.k8s.io/exec", "extension": {"a": 1}}
                ],
            },
        }
    ],
    "users": [],
}
USERS: list[dict[str, Any]] = [
    {"token": SECRET, "as": "jane", "as-groups": ["g"], "as-user-extra": {"k": ["v"]}},
    {"tokenFile": "token"},
    {"username": "u", "password": SECRET},
    {"client-certificate": "cert", "client-key": "key"},
    {"client-certificate-data": SECRETS[1] + "=", "client-key-data": SECRETS[1] + "="},
    {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "args": [SECRET],
            "env": [{"name": "A", "value": SECRET}],
            "installHint": "hint",
            "provideClusterInfo": True,
            "interactiveMode": "Never",
        }
    },
    {
        "auth-provider": {
            "name": "oidc",
            "config": {
                "idp-issuer-url": "http://127.0.0.1:1",
                "client-id": "i",
                "client-secret": SECRET,
                "id-token": f"a.eyJleHAiOjF9.{SECRET}",
                "refresh-token": SECRET,
            },
        }
    },
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    whole = copy.deepcopy(value)
    parent = whole
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = new
    return whole


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates()
    | st.binary(max_size=8)
    | st.text(max_size=8)
    | st.sampled_from(
        ["", "a\0b", "a\nb", "\ud800", "ä", "%", "../x", "/", "http://", "unix:///", "x" * 300]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=4,
)


#: Keys whose URLs may contain a password.
URLS = {"server", "proxy-url", "idp-issuer-url"}
WITH_PASSWORDS = st.sampled_from(
    [
        f"https://u:{SECRET}@127.0.0.1:1",
        f"https://:{SECRET}@127.0.0.1:1",
        f"socks5://u:{SECRET}@127.0.0.1:1",
        f"http://u:{SECRET}@a..b",
        f"u:{SECRET}@127.0.0.1:1",
        f"https://u:{SECRET}/x@127.0.0.1:1",
        f"https://127.0.0.1:1/?token={SECRET}",
    ]
)


@st.composite
def kubeconfigs(draw: st.DrawFn) -> Any:
    """Draw a good kubeconfig with one or two values replaced."""
    value: Any = {**KUBECONFIG, "users": [{"name": "c", "user": draw(st.sampled_from(USERS))}]}
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(places(value))))
        new = VALUES | WITH_PASSWORDS if path and path[-1] in URLS else VALUES
        value = replaced(value, path, draw(new))
    return value


#: Keys below which secrets are expected.
SECRET_KEYS = {
    *("token", "password", "client-certificate-data", "client-key-data", "args", "env"),
    *("client-secret", "id-token", "refresh-token", *URLS),
}


def stands_elsewhere(value: Any) -> bool:
    """Check for a secret that damage moved to an unexpected place, such as a group."""
    if isinstance(value, dict):
        return any(
            any(secret in str(key) for secret in SECRETS)
            or (key not in SECRET_KEYS and stands_elsewhere(inner))
            for key, inner in value.items()
        )
    if isinstance(value, list):
        return any(stands_elsewhere(inner) for inner in value)
    return any(secret in str(value) for secret in SECRETS)


def has_moved(content: bytes) -> bool:
    try:
        return stands_elsewhere(yaml.safe_load(content))
    except (yaml.YAMLError, ValueError, TypeError, AttributeError):
        return False


def check(directory: Path, content: bytes) -> Result:
    path = directory / "config"
    path.write_bytes(content)
    result = CliRunner().invoke(config_command, ["--kubeconfig", str(path)])
    failure = result.exception
    assert failure is None or isinstance(failure, SystemExit), repr(failure)
    assert "Traceback" not in result.output
    for secret in SECRETS:
        assert secret not in result.output or has_moved(content)
    return result


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@FUZZ
@given(kubeconfigs())
@example({**KUBECONFIG, "kind": []})
@example({**KUBECONFIG, "current-context": "a\nb"})
@example(
    replaced(KUBECONFIG, ("clusters", 0, "cluster", "server"), f"https://u:{SECRET}@127.0.0.1:1")
)
@example(
    {**KUBECONFIG, "users": [{"name": "c", "user": {"username": "\ud800", "password": SECRET}}]}
)
def test_a_value_of_any_kind_at_any_place_is_told(tmp_path: Path, value: Any) -> None:
    check(tmp_path, yaml.dump(value, Dumper=yaml.SafeDumper).encode("utf-8", "surrogatepass"))


@FUZZ
@given(st.data())
def test_a_damaged_file_is_told(tmp_path: Path, data: st.DataObject) -> None:
    user = data.draw(st.sampled_from(USERS))
    whole = yaml.safe_dump({**KUBECONFIG, "users": [{"name": "c", "user": user}]}).encode()
    at = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 20))
    piece = data.draw(
        st.binary(max_size=6)
        | st.sampled_from([b"!!", b"!x ", b"*", b"&a ", b"%", b"[", b"{", b"'", b"\t", b"? "])
        | st.sampled_from([b"2001-99-99", b"!!timestamp x", b"!!int x", b"!!float x", b"<<: 1\n"])
    )
    check(tmp_path, whole[:at] + piece + whole[at + length :])


@pytest.mark.parametrize(
    "text",
    [
        f"password: *{SECRET}",
        f"token: !{SECRET} x",
        f"token: &{SECRET}",
        f"token: '{SECRET}",
        f"token: {SECRET}: {SECRET}",
        f"%{SECRET}\n---\na: b",
        "a: 2001-99-99",
        "a: !!timestamp x",
        "a: !!int x",
        "a: !!bool x",
        "a: " + "1" * 5000,
        "a: " + "[" * 5000,
        "? [a]\n: b",
        "<<: 1",
        "a: \x07",
    ],
)
def test_what_is_no_yaml_shows_nothing_of_it(tmp_path: Path, text: str) -> None:
    result = check(tmp_path, text.encode())
    assert result.exit_code == 3
    assert result.output.count("\n") == 1
