"""Kubeconfigs are read as by kubectl; errors name the file, the entry and the remedy."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from listwatch.client import go_yaml, kubeconfig
from listwatch.client.config import Config, ExecConfig, Impersonation, OIDCConfig
from listwatch.client.kubeconfig import in_cluster_config, load_config, parse_kubeconfig
from listwatch.errors import ConfigError

Write = Callable[..., Path]


def content(
    name: str = "c", cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_one(value: object, name: str = "config") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
        return path

    return write_one


def test_everything_is_read(write: Write, tmp_path: Path) -> None:
    pem = base64.b64encode(b"PEM").decode()
    cluster = {
        "server": "https://api:6443/path",
        "certificate-authority-data": pem,
        "tls-server-name": "api.internal",
        "proxy-url": "http://proxy:3128",
        "disable-compression": True,
    }
    user = {
        "token": "t",
        "tokenFile": "token",
        "client-certificate": "/etc/cert.pem",
        "client-key-data": pem,
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["g1", "g2"],
        "as-user-extra": {"scopes": ["a", "b"]},
    }
    value = content(cluster=cluster, user=user)
    value["contexts"][0]["context"]["namespace"] = "shop"
    path = write(value)
    assert load_config(path) == Config(
        server="https://api:6443/path",
        namespace="shop",
        certificate_authority_data=b"PEM",
        tls_server_name="api.internal",
        proxy_url="http://proxy:3128",
        disable_compression=True,
        token="t",
        token_file=str(tmp_path / "token"),
        client_certificate="/etc/cert.pem",
        client_key_data=b"PEM",
        impersonate=Impersonation(
            user="jane", uid="7", groups=("g1", "g2"), extra={"scopes": ("a", "b")}
        ),
        source=f"{path}, context 'c'",
    )


def test_of_several_files_the_first_to_say_something_counts(write: Write, tmp_path: Path) -> None:
    first = content("a", user={"token": "first"})
    del first["current-context"]
    second = content("b", user={"token": "second"})
    second["users"].append({"name": "a", "user": {"token": "other", "username": "merged?"}})
    second["contexts"][0]["context"]["user"] = "a"
    one, two = write(first, "x/one"), write(second, "y/two")
    environ = {"KUBECONFIG": f"{one}:{tmp_path / 'missing'}::{two}"}
    config = load_config(environ=environ)
    assert (config.server, config.token, config.username) == ("https://b", "first", "")
    assert config.source == f"{one}:{two}, context 'b'"
    assert load_config(environ=environ, context="a").server == "https://a"
    changed = load_config(environ=environ, cluster="a", user="b", namespace="n")
    assert (changed.server, changed.token, changed.namespace) == ("https://a", "second", "n")


def test_relative_paths_count_from_the_file_that_names_them(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = content(
        cluster={"certificate-authority": "ca.pem"},
        user={
            "client-certificate": "../cert.pem",
            "client-key": "key.pem",
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "interactiveMode": "Never",
                "command": "./bin/login",
            },
        },
    )
    write(value, "sub/config")
    monkeypatch.chdir(tmp_path)
    config = load_config("sub/config")
    assert Path(config.certificate_authority) == tmp_path / "sub" / "ca.pem"
    assert Path(config.client_certificate).resolve() == tmp_path / "cert.pem"
    assert Path(config.client_key) == tmp_path / "sub" / "key.pem"
    assert config.exec is not None
    assert Path(config.exec.command).resolve() == tmp_path / "sub" / "bin" / "login"


def test_without_kubeconfig_the_one_at_home_counts(write: Write, tmp_path: Path) -> None:
    write(content("home"), ".kube/config")
    assert load_config(environ={"HOME": str(tmp_path)}).server == "https://home"


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    (directory / "token").write_text("rotating")
    (directory / "ca.crt").write_text("PEM")
    (directory / "namespace").write_text("ours\n")
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", directory)
    return directory


def test_in_a_pod_without_files_the_service_account_counts(pod: Path, tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "6443",
    }
    config = in_cluster_config(environ=environ, directory=pod)
    assert config == Config(
        server="https://[fd00::1]:6443",
        namespace="ours",
        certificate_authority=str(pod / "ca.crt"),
        token_file=str(pod / "token"),
        source=str(pod),
    )
    assert load_config(environ=environ, namespace="other").namespace == "other"
    (pod / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"ca\.crt is missing"):
        load_config(environ=environ)
    with pytest.raises(ConfigError, match="not running in a pod"):
        in_cluster_config(environ={}, directory=pod)


def test_in_a_pod_an_empty_file_counts_as_none(pod: Path, write: Write) -> None:
    path = write({"apiVersion": "v1", "kind": "Config", "clusters": None, "users": []})
    environ = {"KUBECONFIG": str(path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert load_config(environ=environ).token_file == str(pod / "token")
    with pytest.raises(ConfigError, match="no current-context"):
        load_config(environ={"KUBECONFIG": str(path)})
    with pytest.raises(ConfigError, match="no current-context"):
        load_config(path, environ=environ)  # A file given by name counts.


def test_a_file_that_is_there_comes_before_the_service_account(
    pod: Path, write: Write, tmp_path: Path
) -> None:
    assert pod.is_dir()
    write(content("home"), ".kube/config")
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert load_config(environ=environ).server == "https://home"


def test_an_exec_plugin_is_read_with_the_clusters_extension(write: Write) -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": ["eks", "get-token"],
        "env": [{"name": "AWS_PROFILE", "value": "dev"}],
        "installHint": "install aws",
        "provideClusterInfo": True,
    }
    config = load_config(write(content(cluster={"extensions": [extension]}, user={"exec": plugin})))
    assert config.exec == ExecConfig(
        command="aws",
        api_version="client.authentication.k8s.io/v1beta1",
        args=("eks", "get-token"),
        env={"AWS_PROFILE": "dev"},
        install_hint="install aws",
        provide_cluster_info=True,
        config={"audience": "x"},
    )


def test_an_oidc_provider_is_read(write: Write) -> None:
    provider = {
        "name": "oidc",
        "config": {
            "idp-issuer-url": "https://idp",
            "client-id": "kubectl",
            "client-secret": "s",
            "id-token": "i",
            "refresh-token": "r",
        },
    }
    path = write(content(user={"auth-provider": provider}))
    assert load_config(path).oidc == OIDCConfig(
        issuer_url="https://idp",
        client_id="kubectl",
        client_secret="s",
        id_token="i",
        refresh_token="r",
        kubeconfig=str(path),
        user="c",
    )


def broken(**changes: Any) -> dict[str, Any]:
    return content() | changes


GROUP = "client.authentication.k8s.io"
EXEC_V1 = {"apiVersion": f"{GROUP}/v1", "interactiveMode": "Never"}

ERRORS: dict[str, tuple[object, list[str]]] = {
    "no YAML": ("a: [1\nb: 2", ["line 2", "invalid YAML"]),
    "a list": ([1], ["a kubeconfig must be a mapping, not a list"]),
    "another kind": (broken(kind="Pod"), ["kind is Config, not 'Pod'"]),
    "no context": (broken(**{"current-context": ""}), ["no current-context", "use-context", ": c"]),
    "an unknown context": (
        broken(**{"current-context": "x"}),
        ["current-context names context 'x', which does not exist (known: c)"],
    ),
    "an unknown cluster": (
        broken(clusters=[]),
        ["context 'c' names cluster 'c', which does not exist (known: none)"],
    ),
    "an unknown user": (broken(users=None), ["context 'c' names user 'c'"]),
    "no server": (broken(clusters=[{"name": "c", "cluster": {}}]), ["cluster 'c' has no server"]),
    "clusters as a mapping": (broken(clusters={"c": {}}), ["clusters must be a list"]),
    "a user that is a text": (broken(users=["u"]), ["users[0] has no name"]),
    "a text for a mapping": (broken(users=[{"name": "c", "user": "x"}]), ["user 'c' must be a"]),
    "no base64": (
        content(cluster={"certificate-authority-data": "%"}),
        ["cluster 'c'", "certificate-authority-data is not valid base64"],
    ),
    "a number for a token": (content(user={"token": 12}), ["user 'c'", "token must be a string"]),
    "a text for a flag": (
        content(cluster={"insecure-skip-tls-verify": "yes"}),
        ["insecure-skip-tls-verify must be true or false"],
    ),
    "insecure with an authority": (
        content(cluster={"insecure-skip-tls-verify": True, "certificate-authority": "x"}),
        ["both insecure-skip-tls-verify and a certificate authority", "remove one"],
    ),
    "groups as a text": (content(user={"as-groups": "g"}), ["as-groups must be a list"]),
    "extra as a text": (
        content(user={"as-user-extra": {"k": "v"}}),
        ["as-user-extra 'k' must be a list"],
    ),
    "an old auth-provider": (
        content(user={"auth-provider": {"name": "gcp"}}),
        ["auth-provider 'gcp' was removed", "gke-gcloud-auth-plugin"],
    ),
    "two kinds of plugin": (
        content(user={"exec": {"command": "x"}, "auth-provider": {"name": "oidc"}}),
        ["user 'c' has both exec and auth-provider; remove one"],
    ),
    "an exec without command": (content(user={"exec": EXEC_V1}), ["exec", "has no command"]),
    "an exec of an old version": (
        content(user={"exec": {**EXEC_V1, "command": "x", "apiVersion": f"{GROUP}/v1alpha1"}}),
        ["v1alpha1' is not supported", "set it to client.authentication.k8s.io/v1"],
    ),
    "an exec without mode": (
        content(user={"exec": {"command": "x", "apiVersion": EXEC_V1["apiVersion"]}}),
        ["interactiveMode must be set"],
    ),
    "an exec of an unknown mode": (
        content(user={"exec": {**EXEC_V1, "command": "x", "interactiveMode": "Sometimes"}}),
        ["'Sometimes' is not one of Never, IfAvailable, Always"],
    ),
    "an exec with a broken env": (
        content(user={"exec": {**EXEC_V1, "command": "x", "env": [{"name": 5}]}}),
        ["env must be a list of name and value"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_a_broken_configuration_is_told_in_one_line(case: str, write: Write) -> None:
    value, words = ERRORS[case]
    path = write(value)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for word in words:
        assert word in message


def test_an_unknown_field_of_what_is_used_is_told_with_the_likely_one(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    value = content(user={"tokenfile": "sw0rdfish", "token": "t"}, cluster={"sever": "x"})
    value["users"].append({"name": "other", "user": {"nonsense": 1}})
    path = write(value)
    assert load_config(path).token_file == ""
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: cluster 'c': 'sever' is not known and is ignored; did you mean server?",
        f"{path}: user 'c': 'tokenfile' is not known and is ignored; did you mean tokenFile?",
    ]


def test_files_that_can_not_be_read_are_told(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing does not exist"):
        load_config(tmp_path / "missing")
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid UTF-8"):
        load_config(tmp_path / "latin")
    with pytest.raises(ConfigError, match=r"of KUBECONFIG does not exist.*set KUBECONFIG"):
        load_config(environ={"KUBECONFIG": str(tmp_path / "missing")})
    with pytest.raises(ConfigError, match=r"\.kube/config does not exist"):
        load_config(environ={"HOME": str(tmp_path / "nobody")})
    assert load_config(write(content("c")), cluster=None).server == "https://c"


def test_null_and_absent_texts_are_empty_as_kubectl_reads_them(write: Write) -> None:
    user = {
        "as": "me",
        "as-groups": ["g", None],
        "as-user-extra": {"k": None, "l": [None, "v"]},
        "exec": {**EXEC_V1, "command": "x", "interactiveMode": "Never"}
        | {"args": ["a", None], "env": [{"name": "A"}, {"name": "B", "value": None}]},
    }
    value = content(user=user)
    value["users"] += [None]
    value["clusters"] += [{"cluster": {"server": "https://other"}}]
    value["contexts"] += [{"name": None}]
    config = load_config(write(value))
    assert config.impersonate.groups == ("g", "")
    assert config.impersonate.extra == {"k": (), "l": ("", "v")}
    assert config.exec is not None
    assert config.exec.args == ("a", "")
    assert config.exec.env == {"A": "", "B": ""}


def test_two_entries_without_a_name_have_the_same_one(write: Write) -> None:
    value = content()
    value["users"] += [{"user": {"token": "a"}}, None]
    with pytest.raises(ConfigError, match="two users have the name ''"):
        load_config(write(value))


@pytest.mark.parametrize("version", ["v2", 1, ["v1"]])
def test_a_kubeconfig_of_another_version_is_refused(version: object, write: Write) -> None:
    with pytest.raises(ConfigError, match="apiVersion is v1, not"):
        load_config(write({**content(), "apiVersion": version}))


@pytest.mark.parametrize("token", [r"\ud83d", r"a\ude00b", r"\ud83d\ude00"])
def test_half_a_character_is_refused_as_by_kubectl(token: str, tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text(f'users: [{{name: u, user: {{token: "{token}"}}}}]')
    with pytest.raises(ConfigError, match="line 1: invalid YAML: half a character"):
        load_config(path)


def test_a_cluster_alone_needs_no_context(write: Write) -> None:
    value = content()
    del value["current-context"]
    config = load_config(write(value), cluster="c", user="c")
    assert (config.server, config.namespace) == ("https://c", "default")


def test_no_secret_is_shown() -> None:
    secret = "sw0rdfish"
    config = Config(
        server="https://x",
        token=secret,
        password=secret,
        client_key_data=secret.encode(),
        proxy_url=f"http://u:{secret}@proxy",
        exec=ExecConfig(command="c", args=(secret,), env={"K": secret}),
        oidc=OIDCConfig(client_secret=secret, id_token=secret, refresh_token=secret),
        client_certificate_data=secret.encode(),
    )
    assert secret not in repr(config)
    assert secret not in str(config.shown())
    assert "server='https://x'" in repr(config)


def test_a_configuration_without_a_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="no server is set"):
        Config(server="")


@pytest.mark.parametrize(
    "value", ["2024-01-01", "0", "[y, 1e3]", "{a: {b: null}}", "", "1:30", "false"]
)
def test_the_extension_of_a_plugin_may_be_any_yaml(value: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "clusters: [{name: c, cluster: {server: 'https://x', extensions: [5, {name: "
        f"client.authentication.k8s.io/exec, extension: {value}}}]}}}}]\n"
        "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: p, "
        "interactiveMode: Never}}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
    )
    found = load_config(path).exec
    assert found is not None
    loaded: Any = go_yaml.load(f"v: {value}\n")
    assert found.config == loaded["v"]
    assert json.loads(json.dumps(found.config)) == found.config


def test_a_kubeconfig_need_not_be_a_file() -> None:
    value = content(user={"token": "t"})
    for given in (value, yaml.safe_dump(value), json.dumps(value).encode()):
        config = parse_kubeconfig(given, namespace="ns")
        assert (config.server, config.token, config.namespace) == ("https://c", "t", "ns")
        assert config.source == "kubeconfig, context 'c'"


def test_tokens_of_a_kubeconfig_that_is_no_file_are_written_nowhere() -> None:
    provider = {"name": "oidc", "config": {"client-id": "i", "refresh-token": "r"}}
    config = parse_kubeconfig(content(user={"auth-provider": provider}))
    assert config.oidc is not None
    assert (config.oidc.refresh_token, config.oidc.kubeconfig) == ("r", "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "kubeconfig: no current-context; choose one of: none"),
        ({}, "kubeconfig: no current-context; choose one of: none"),
        ("[]", "kubeconfig: a kubeconfig must be a mapping, not a list"),
        ("{a: ", "kubeconfig, line 1: invalid YAML"),
        ("\ud800", "kubeconfig is not valid UTF-8"),
        ({"kind": "Secret"}, "kubeconfig: a kubeconfig's kind is Config, not 'Secret'"),
        (content(cluster={"server": ""}), "kubeconfig: cluster 'c' has no server"),
    ],
    ids=str,
)
def test_a_broken_kubeconfig_that_is_no_file_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_kubeconfig(given)
    assert str(caught.value).startswith(words)


def test_what_is_no_kubeconfig_at_all_is_a_type_error() -> None:
    value: Any = ["a secret"]
    with pytest.raises(TypeError, match="text or a mapping, not a list"):
        parse_kubeconfig(value)
