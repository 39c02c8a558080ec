"""kubectl's configuration: kubeconfig files, or the pod's service account."""

import base64
import binascii
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from listwatch.client.config import (
    Config,
    ExecConfig,
    Impersonation,
    OIDCConfig,
)
from listwatch.client.reach import current_reach
from listwatch.errors import ConfigError

#: The service account's directory in a pod.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_EXEC_VERSIONS: Final = tuple(f"client.authentication.k8s.io/{v}" for v in ("v1", "v1beta1"))
_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"
_INTERACTIVE_MODES: Final = ("Never", "IfAvailable", "Always")

_log = logging.getLogger(__name__)

_FIELDS: Final = {
    "cluster": (
        "server",
        "certificate-authority",
        "certificate-authority-data",
        "insecure-skip-tls-verify",
        "tls-server-name",
        "proxy-url",
        "disable-compression",
        "extensions",
    ),
    "user": (
        "token",
        "tokenFile",
        "username",
        "password",
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "as",
        "as-uid",
        "as-groups",
        "as-user-extra",
        "exec",
        "auth-provider",
        "extensions",
    ),
    "context": ("cluster", "user", "namespace", "extensions"),
}


class _Entry(msgspec.Struct, frozen=True):
    """A cluster, user or context, and the file that defines it."""

    kind: str
    name: str
    fields: Mapping[str, Any]
    file: Path

    @property
    def where(self) -> str:
        return f"{self.file}: {self.kind} {self.name!r}"

    def text(self, field: str) -> str:
        value = self.fields.get(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise ConfigError(f"{self.where}: {field} must be a string, not {_shown(value)}")
        return value

    def flag(self, field: str) -> bool:
        value = self.fields.get(field)
        if not isinstance(value, bool | None):
            raise ConfigError(f"{self.where}: {field} must be true or false, not {_shown(value)}")
        return bool(value)

    def data(self, field: str) -> bytes:
        try:
            return base64.b64decode("".join(self.text(field).split()), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"{self.where}: {field} is not valid base64") from None

    def path(self, field: str) -> str:
        """Return a file's path; a relative one is relative to the file that contains it."""
        text = self.text(field)
        return str(self.file.parent / text) if text else ""

    def mapping(self, field: str) -> Mapping[str, Any]:
        value = self.fields.get(field)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self.where}: {field} must be a mapping, not {_shown(value)}")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        return _texts(self.fields.get(field), self.where, field)

    def items(self, field: str) -> Sequence[Any]:
        value = self.fields.get(field)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise ConfigError(f"{self.where}: {field} must be a list, not {_shown(value)}")
        return value

    def part(self, field: str) -> "_Entry":
        return _Entry(f"{self.kind} {self.name!r}:", field, self.mapping(field), self.file)


def _texts(value: object, where: str, field: str) -> tuple[str, ...]:
    """Return a list of strings; Go reads a null as an empty one."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str | None) for item in value):
        raise ConfigError(f"{where}: {field} must be a list of strings")
    return tuple(item or "" for item in value)


def _text_of(item: Mapping[str, Any], field: str) -> object:
    """Return a field, "" if it is absent."""
    value = item.get(field)
    return "" if value is None else value


def _shown(value: object) -> str:
    # Only the type: the value of a misplaced field may be a secret.
    return {dict: "a mapping", list: "a list", bool: "true or false"}.get(
        type(value), f"a {type(value).__name__}"
    )


class _Files(msgspec.Struct):
    """The merged kubeconfig: the first file that has an entry or setting counts."""

    clusters: dict[str, _Entry]
    users: dict[str, _Entry]
    contexts: dict[str, _Entry]
    current_context: str
    paths: list[Path]

    @property
    def where(self) -> str:
        return ":".join(map(str, self.paths))


def load_config(
    path: str | os.PathLike[str] | None = None,
    *,
    context: str | None = None,
    cluster: str | None = None,
    user: str | None = None,
    namespace: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Return the configuration that kubectl would use.

    The files are `path`, otherwise those in KUBECONFIG, otherwise `~/.kube/config`. If none of them
    exists, it is the service account of the pod that this runs in. Credentials from a file are sent
    only over TLS. Reads files; may be called from any thread. In a simulation it is the simulated
    server's, whatever the arguments.

    Args:
        path: a kubeconfig file, which must exist.
        context: overrides the files' current-context.
        cluster: overrides the context's cluster.
        user: overrides the context's user.
        namespace: overrides the context's namespace.
        environ: replaces the process's environment.

    Raises:
        ConfigError: there is no configuration, or it is invalid; the message names the file, the
            entry and what to do.
    """
    if (reach := current_reach.get()) is not None:
        config = reach.config
        return msgspec.structs.replace(config, namespace=namespace or config.namespace)
    environ = os.environ if environ is None else environ
    paths, explicit = _paths(path, environ)
    files = _read(paths, must_exist=path is not None)
    # An empty file is ignored if there is a service account, as in client-go's
    # tools/clientcmd/merged_client_builder.go.
    is_empty = not (files.clusters or files.users or files.contexts or files.current_context)
    is_pod = "KUBERNETES_SERVICE_HOST" in environ and (SERVICE_ACCOUNT / "token").is_file()
    if is_empty and path is None and is_pod:
        config = in_cluster_config(environ=environ, directory=SERVICE_ACCOUNT)
        return msgspec.structs.replace(config, namespace=namespace or config.namespace)
    if not files.paths:
        tried = ", ".join(map(str, paths)) or "no file"
        raise ConfigError(
            f"no kubeconfig: {tried} {'of KUBECONFIG ' if explicit else ''}does not exist, "
            "and no pod's service account is mounted; set KUBECONFIG to a kubeconfig file"
        )
    return _config(files, context=context, cluster=cluster, user=user, namespace=namespace)


def parse_kubeconfig(
    kubeconfig: str | bytes | Mapping[str, Any],
    *,
    context: str | None = None,
    cluster: str | None = None,
    user: str | None = None,
    namespace: str | None = None,
) -> Config:
    """Return the configuration of a kubeconfig without a file, such as one read from a Secret.

    Relative paths in it are relative to the working directory; renewed OIDC tokens stay in memory.
    A kubeconfig can name files to read and commands to run: do not load one that you do not trust.
    May be called from any thread.

    Args:
        kubeconfig: its YAML or JSON, or its decoded form.
        context: as in `load_config`.
        cluster: as in `load_config`.
        user: as in `load_config`.
        namespace: as in `load_config`.

    Raises:
        ConfigError: it is invalid; the message names the entry and what to do.
        TypeError: it is neither text nor a mapping.
    """
    path = Path("kubeconfig")  # for messages
    if isinstance(kubeconfig, str):
        kubeconfig = kubeconfig.encode("utf-8", "surrogatepass")
    if isinstance(kubeconfig, bytes):
        loaded = _parse(path, kubeconfig)
    elif isinstance(kubeconfig, Mapping):
        loaded = _checked(path, kubeconfig)
    else:
        raise TypeError(f"a kubeconfig is text or a mapping, not {_shown(kubeconfig)}")
    files = _Files({}, {}, {}, "", [path])
    _merge(files, path, loaded)
    config = _config(files, context=context, cluster=cluster, user=user, namespace=namespace)
    if config.oidc is None:
        return config
    return msgspec.structs.replace(config, oidc=msgspec.structs.replace(config.oidc, kubeconfig=""))


def in_cluster_config(
    *, environ: Mapping[str, str] | None = None, directory: Path = SERVICE_ACCOUNT
) -> Config:
    """Return the configuration of the pod's service account; its token file is re-read.

    Raises:
        ConfigError: this is not a pod, or it has no service account.
    """
    environ = os.environ if environ is None else environ
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    token, authority = directory / "token", directory / "ca.crt"
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: not running in a pod")
    for file in (token, authority):
        if not file.is_file():
            raise ConfigError(f"{file} is missing: no service account is mounted in this pod")
    try:
        namespace = (directory / "namespace").read_text().strip()
    except (OSError, UnicodeDecodeError):
        namespace = ""
    return Config(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace or "default",
        certificate_authority=str(authority),
        token_file=str(token),
        source=str(directory),
    )


def _paths(
    path: str | os.PathLike[str] | None, environ: Mapping[str, str]
) -> tuple[list[Path], bool]:
    if path is not None:
        return [Path(path).expanduser()], True
    listed = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed:
        return [Path(part) for part in dict.fromkeys(listed)], True
    home = environ.get("HOME")
    return [(Path(home) if home else Path.home()) / ".kube" / "config"], False


def _read(paths: Sequence[Path], *, must_exist: bool) -> _Files:
    files = _Files({}, {}, {}, "", [])
    for path in paths:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            if must_exist:
                raise ConfigError(f"{path} does not exist") from None
            continue
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or "not a valid path"
            raise ConfigError(f"{path} can't be read: {words}") from None
        files.paths.append(path)
        _merge(files, path.absolute(), _parse(path, content))
    return files


def _parse(path: Path, content: bytes) -> Mapping[str, Any]:
    from listwatch.client import go_yaml  # noqa: PLC0415 - a pod has no such file

    try:
        loaded = go_yaml.load(go_yaml.decode_text(content)[0])
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not valid UTF-8") from None
    except go_yaml.YAMLError as error:
        place = f", line {error.line}" if error.line else ""
        raise ConfigError(f"{path}{place}: invalid YAML: {error}") from None
    return _checked(path, loaded)


def _checked(path: Path, loaded: object) -> Mapping[str, Any]:
    if loaded is None:
        return {}
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"{path}: a kubeconfig must be a mapping, not {_shown(loaded)}")
    kind = loaded.get("kind")
    if kind not in (None, "", "Config"):
        found = repr(kind) if isinstance(kind, str) else _shown(kind)
        raise ConfigError(f"{path}: a kubeconfig's kind is Config, not {found}")
    version = loaded.get("apiVersion")
    if version not in (None, "", "v1"):
        found = repr(version) if isinstance(version, str) else _shown(version)
        raise ConfigError(f"{path}: a kubeconfig's apiVersion is v1, not {found}")
    return loaded


def _merge(files: _Files, path: Path, loaded: Mapping[str, Any]) -> None:
    for kind, into in (
        ("cluster", files.clusters),
        ("user", files.users),
        ("context", files.contexts),
    ):
        listed = loaded.get(f"{kind}s")
        if listed is None:
            continue
        if not isinstance(listed, list):
            raise ConfigError(f"{path}: {kind}s must be a list, not {_shown(listed)}")
        names: set[str] = set()
        for number, given in enumerate(listed):
            item = {} if given is None else given  # Go reads a null as absent
            name = _text_of(item, "name") if isinstance(item, Mapping) else None
            if not isinstance(name, str) or not isinstance(item, Mapping):
                raise ConfigError(f"{path}: {kind}s[{number}] has no name")
            fields = item.get(kind)
            if not isinstance(fields, Mapping | None):
                raise ConfigError(f"{path}: {kind} {name!r} must be a mapping")
            if name in names:
                raise ConfigError(
                    f"{path}: two {kind}s have the name {name!r}; rename or remove one of them"
                )
            names.add(name)
            into.setdefault(name, _Entry(kind, name, fields or {}, path))
    current = loaded.get("current-context")
    if not files.current_context and isinstance(current, str):
        files.current_context = current


def _pick(files: _Files, kind: str, name: str, named_by: str) -> _Entry:
    entries: dict[str, _Entry] = getattr(files, f"{kind}s")
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise ConfigError(
            f"{files.where}: {named_by} {kind} {name!r}, which does not exist (known: {known})"
        )
    return entries[name]


def _config(
    files: _Files,
    *,
    context: str | None,
    cluster: str | None,
    user: str | None,
    namespace: str | None,
) -> Config:
    chosen = context or files.current_context
    if chosen:
        asked = "the argument names" if context else "current-context names"
        entry = _pick(files, "context", chosen, asked)
    elif cluster:
        entry = _Entry("context", "", {}, files.paths[0])
    else:
        known = ", ".join(sorted(files.contexts)) or "none"
        raise ConfigError(
            f"{files.where}: no current-context; choose one of: {known} "
            "(kubectl config use-context NAME)"
        )
    by_context = f"context {chosen!r} names"
    cluster_name = cluster or entry.text("cluster")
    if not cluster_name:
        raise ConfigError(f"{entry.where} has no cluster; set one")
    server = _pick(files, "cluster", cluster_name, "the argument names" if cluster else by_context)
    user_name = user or entry.text("user")
    account = (
        _pick(files, "user", user_name, "the argument names" if user else by_context)
        if user_name
        else _Entry("user", "", {}, files.paths[0])
    )
    for used in (entry, server, account):
        _warn_of_unknown(used)
    return Config(
        namespace=namespace or entry.text("namespace") or "default",
        source=f"{files.where}, context {chosen!r}" if chosen else files.where,
        tls_only=not server.text("server").startswith("https:"),
        **_cluster_settings(server),
        **_user_settings(account, server),
    )


def _warn_of_unknown(entry: _Entry) -> None:
    # kubectl ignores unknown fields; a misspelt `tokenfile` would mean an anonymous request.
    known = _FIELDS[entry.kind]
    for name in entry.fields:
        if name not in known:
            import difflib  # noqa: PLC0415 - rarely needed

            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            _log.warning("%s: %.40r is not known and is ignored%s", entry.where, name, hint)


def _cluster_settings(entry: _Entry) -> dict[str, Any]:
    server = entry.text("server")
    if not server:
        raise ConfigError(f"{entry.where} has no server; set server to the API server's URL")
    settings = {
        "server": server,
        "certificate_authority": entry.path("certificate-authority"),
        "certificate_authority_data": entry.data("certificate-authority-data"),
        "insecure_skip_tls_verify": entry.flag("insecure-skip-tls-verify"),
        "tls_server_name": entry.text("tls-server-name"),
        "proxy_url": entry.text("proxy-url"),
        "disable_compression": entry.flag("disable-compression"),
    }
    if settings["insecure_skip_tls_verify"] and (
        settings["certificate_authority"] or settings["certificate_authority_data"]
    ):
        raise ConfigError(
            f"{entry.where} has both insecure-skip-tls-verify and a certificate authority; "
            "remove one of them"
        )
    return settings


def _user_settings(entry: _Entry, cluster: _Entry) -> dict[str, Any]:
    extra = {}
    for name, values in entry.mapping("as-user-extra").items():
        extra[name] = _texts(values, entry.where, f"as-user-extra {name!r}")
    if entry.mapping("exec") and entry.mapping("auth-provider"):
        raise ConfigError(f"{entry.where} has both exec and auth-provider; remove one of them")
    return {
        "token": entry.text("token"),
        "token_file": entry.path("tokenFile"),
        "username": entry.text("username"),
        "password": entry.text("password"),
        "client_certificate": entry.path("client-certificate"),
        "client_certificate_data": entry.data("client-certificate-data"),
        "client_key": entry.path("client-key"),
        "client_key_data": entry.data("client-key-data"),
        "impersonate": Impersonation(
            user=entry.text("as"),
            uid=entry.text("as-uid"),
            groups=entry.texts("as-groups"),
            extra=extra,
        ),
        "exec": _exec(entry, cluster) if entry.mapping("exec") else None,
        "oidc": _oidc(entry) if entry.mapping("auth-provider") else None,
    }


def _exec(user: _Entry, cluster: _Entry) -> ExecConfig:
    entry = user.part("exec")
    command, version = entry.text("command"), entry.text("apiVersion")
    if not command:
        raise ConfigError(f"{entry.where} has no command; set one")
    if version not in _EXEC_VERSIONS:
        raise ConfigError(
            f"{entry.where}: apiVersion {version!r} is not supported; set it to "
            f"{' or '.join(_EXEC_VERSIONS)}"
        )
    env: dict[str, str] = {}
    for item in entry.items("env"):
        name, value = (
            _text_of(item, k) if isinstance(item, Mapping) else None for k in ("name", "value")
        )
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"{entry.where}: env must be a list of name and value")
        env[name] = value
    mode = entry.text("interactiveMode")
    if version.endswith("/v1") and not mode:
        raise ConfigError(f"{entry.where}: interactiveMode must be set with apiVersion {version}")
    if mode and mode not in _INTERACTIVE_MODES:
        raise ConfigError(
            f"{entry.where}: interactiveMode {mode!r} is not one of {', '.join(_INTERACTIVE_MODES)}"
        )
    if "/" in command and not command.startswith("/"):
        command = str(entry.file.parent / command)
    extension = None
    for item in cluster.items("extensions"):
        if isinstance(item, Mapping) and item.get("name") == _EXEC_EXTENSION:
            extension = item.get("extension")
    return ExecConfig(
        command=command,
        api_version=version,
        args=entry.texts("args"),
        env=env,
        install_hint=entry.text("installHint"),
        provide_cluster_info=entry.flag("provideClusterInfo"),
        interactive_mode=mode or "IfAvailable",
        config=extension,
    )


def _oidc(user: _Entry) -> OIDCConfig:
    provider = user.part("auth-provider")
    name = provider.text("name")
    if name != "oidc":
        raise ConfigError(
            f"{provider.where}: the auth-provider {name!r} was removed from Kubernetes; "
            "use its exec plugin (gke-gcloud-auth-plugin, kubelogin)"
        )
    entry = provider.part("config")
    return OIDCConfig(
        issuer_url=entry.text("idp-issuer-url"),
        client_id=entry.text("client-id"),
        client_secret=entry.text("client-secret"),
        id_token=entry.text("id-token"),
        refresh_token=entry.text("refresh-token"),
        certificate_authority=entry.path("idp-certificate-authority"),
        certificate_authority_data=entry.data("idp-certificate-authority-data"),
        kubeconfig=str(user.file),
        user=user.name,
    )


def save_tokens(kubeconfig: Path, user: str, *, id_token: str, refresh_token: str) -> None:
    """Write the renewed tokens of an OIDC user back to a kubeconfig file, as kubectl does.

    Replaces the file in one step, and changes only the two tokens; like kubectl, it never waits.
    May be called from any thread.

    Raises:
        ConfigError: another process is writing the file; it can't be read or written, or has
            changed; or the tokens share their place with something else (an anchor). The file is
            then unchanged.
    """
    from listwatch.client.renewed_tokens import (  # noqa: PLC0415 - loads PyYAML, rarely needed
        write_tokens,
    )

    write_tokens(kubeconfig, user, id_token=id_token, refresh_token=refresh_token)
