"""Several files are merged as the real kubectl merges them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import components
from listwatch.client.kubeconfig import load_config
from listwatch.errors import ConfigError

pytestmark = pytest.mark.needs("kubectl")

NAMES = ("a", "b")


def some(**fields: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({}, optional={k.replace("_", "-"): v for k, v in fields.items()})


def entries(kind: str, fields: st.SearchStrategy[dict[str, str]]) -> st.SearchStrategy[Any]:
    chosen = st.dictionaries(st.sampled_from(NAMES), fields, max_size=2)
    return chosen.map(lambda found: [{"name": name, kind: f} for name, f in found.items()])


WORDS = st.sampled_from(("red", "green", "blue"))
CONTEXT = st.fixed_dictionaries(
    {"cluster": st.sampled_from(NAMES)},
    optional={"user": st.sampled_from(NAMES), "namespace": WORDS},
)
CLUSTER = st.fixed_dictionaries(
    {"server": WORDS.map("https://{}:1".format)},
    optional={"certificate-authority": WORDS, "tls-server-name": WORDS},
)
USER = some(token=WORDS, tokenFile=WORDS, username=WORDS, client_certificate=WORDS)
FILE = st.fixed_dictionaries(
    {
        "kind": st.just("Config"),
        "apiVersion": st.just("v1"),
        "contexts": entries("context", CONTEXT),
        "clusters": entries("cluster", CLUSTER),
        "users": entries("user", USER),
    },
    optional={"current-context": st.sampled_from(NAMES)},
)


def by_kubectl(environ: dict[str, str]) -> dict[str, Any] | None:
    arguments = ["config", "view", "--minify", "--raw", "-o", "json"]
    environ = {**os.environ, **environ}
    done = subprocess.run(
        [components.path("kubectl"), *arguments], env=environ, capture_output=True, check=False
    )
    if done.returncode:
        return None
    view = json.loads(done.stdout)
    (chosen,) = (entry["context"] for entry in view["contexts"])
    found: dict[str, Any] = {"namespace": chosen.get("namespace", "default")}
    for kind in ("cluster", "user"):
        for entry in view[f"{kind}s"] or ():
            found |= entry[kind]
    return found if "server" in found else None  # Otherwise kubectl tries port 8080.


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(FILE, min_size=1, max_size=3))
def test_files_merge_as_kubectl_merges_them(tmp_path: Path, files: list[dict[str, Any]]) -> None:
    paths = [tmp_path / str(number) / "config" for number in range(len(files))]
    for path, value in zip(paths, files, strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(value))
    environ = {"KUBECONFIG": os.pathsep.join(map(str, paths)), "HOME": str(tmp_path)}
    theirs = by_kubectl(environ)
    try:
        config = load_config(environ=environ)
    except ConfigError:
        assert theirs is None
        return
    ours = {
        "server": config.server,
        "namespace": config.namespace,
        "tls-server-name": config.tls_server_name,
        "token": config.token,
        "username": config.username,
        # kubectl prints paths as written in the files.
        "certificate-authority": Path(config.certificate_authority).name,
        "tokenFile": Path(config.token_file).name,
        "client-certificate": Path(config.client_certificate).name,
    }
    assert {name: value for name, value in ours.items() if value} == theirs
