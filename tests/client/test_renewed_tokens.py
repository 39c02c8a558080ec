"""Renewed tokens change nothing else in a kubeconfig."""

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

import components
from listwatch.client import go_yaml
from listwatch.client.kubeconfig import save_tokens
from listwatch.errors import ConfigError

OLD_ID, OLD_REFRESH = "eyJh.eyJi.sig", "old-refresh"
NEW_ID, NEW_REFRESH = "eyJh.eyJiNEW.sig-_", "new~refresh"

BLOCK = """\
# of the whole team
apiVersion: v1
kind: Config
clusters:
- {name: "12e45", cluster: {server: "https://a.example"}}   # quoted for Go
contexts:
  - name: "y"
    context:
      cluster: "12e45"
      user: u
      namespace: '1e3'
current-context: "y"

users:
- name: other
  user: {token: ID}
- name: u
  user:
    auth-provider:
      name: oidc
      config:
        client-id: "5e9"
        # renewed each hour
        id-token: ID   # the old one
        idp-issuer-url: https://i.example
        refresh-token: REFRESH
"""


def block(id_token: str, refresh_token: str) -> str:
    head, _, tail = BLOCK.rpartition("ID   #")
    return f"{head}{id_token}   #{tail}".replace("REFRESH", refresh_token)


FLOW = (
    "users: [{name: u, user: {auth-provider: {name: oidc, config: "
    "{id-token: %s,refresh-token:\t%s, client-id: c}}}}]\n"
)
JSON = (
    '{"kind":"Config","users":[{"name":"u","user":{"auth-provider":{"name":"oidc",'
    '"config":{"client-id":"c","id-token":%s,"refresh-token":%s}}}}]}'
)
CASES: dict[str, tuple[str, str]] = {
    "plain": (block(OLD_ID, OLD_REFRESH), block(NEW_ID, NEW_REFRESH)),
    "double quotes": (
        block(f'"{OLD_ID}"', f'"{OLD_REFRESH}"'),
        block(f'"{NEW_ID}"', f'"{NEW_REFRESH}"'),
    ),
    "single quotes": (block("'a''b'", "''"), block(f"'{NEW_ID}'", f"'{NEW_REFRESH}'")),
    "null": (block("~", "null"), block(NEW_ID, NEW_REFRESH)),
    "tags": (block("!!str 12", "!!str x"), block(f"!!str {NEW_ID}", f"!!str {NEW_REFRESH}")),
    "flow": (FLOW % ("a", '"b"'), FLOW % (NEW_ID, f'"{NEW_REFRESH}"')),
    "JSON": (JSON % ('"a"', '"b"'), JSON % (f'"{NEW_ID}"', f'"{NEW_REFRESH}"')),
    "two lines": (block('"a\n          b"', "c"), block(f'"{NEW_ID}"', NEW_REFRESH)),
    "second document": (
        block("a", "b") + "---\nusers: [\n",
        block(NEW_ID, NEW_REFRESH) + "---\nusers: [\n",
    ),
    "Windows": (
        block("a", "b").replace("\n", "\r\n"),
        block(NEW_ID, NEW_REFRESH).replace("\n", "\r\n"),
    ),
    "byte order mark": ("\ufeff" + block("a", "b"), "\ufeff" + block(NEW_ID, NEW_REFRESH)),
}
CASES["nothing there"] = (
    BLOCK.replace("id-token: ID   #", "id-token: #").replace(" REFRESH", ""),
    BLOCK.replace("id-token: ID   #", f"id-token: {NEW_ID} #").replace("REFRESH", NEW_REFRESH),
)


def save(path: Path, id_token: str = NEW_ID, refresh_token: str = NEW_REFRESH) -> None:
    save_tokens(path, "u", id_token=id_token, refresh_token=refresh_token)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_the_two_tokens_change_and_no_other_byte(case: str, encoding: str, tmp_path: Path) -> None:
    before, after = CASES[case]
    if encoding != "utf-8":
        before, after = (f"\ufeff{text.removeprefix(chr(0xFEFF))}" for text in (before, after))
    path = tmp_path / "config"
    path.write_bytes(before.encode(encoding))
    save(path)
    assert path.read_bytes().decode(encoding) == after
    assert [file.name for file in tmp_path.iterdir()] == ["config"]


def config_of(path: Path) -> dict[str, Any]:
    loaded: Any = go_yaml.load(path.read_text())
    user = next(entry for entry in loaded["users"] if entry["name"] == "u")
    config: dict[str, Any] = user["user"]["auth-provider"]["config"]
    return config


CONFIGS = ["{}", "{a: b}", '{"a":"b"}', "\n        a: b", "\r\n        a: b"]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_missing_token_is_added(config: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    head = "users:\n- name: u\n  user:\n    auth-provider:\n      config: "
    path.write_text(f"{head}{config}\n", newline="")
    before = config_of(path)
    save(path)
    assert config_of(path) == {**before, "id-token": NEW_ID, "refresh-token": NEW_REFRESH}
    assert path.read_bytes().startswith((head + config[:1]).encode())


@pytest.mark.parametrize("style", ["|", ">", "|-", ">-", "|+"])
def test_a_block_of_text_becomes_one_line(style: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(block(f"{style}\n          abc\n          def\n       ", "r"))
    path.write_text(path.read_text().replace("          # the old one", "        x: y"))
    before = path.read_text()
    save(path)
    assert config_of(path)["id-token"] == NEW_ID
    assert path.read_text().partition("id-token")[0] == before.partition("id-token")[0]


TOKENS = ["12e45", "y", "null", "0x1F", "a: b", "a #b", "", "'", '"', "é\n\t\x1b", "~", "@x", "1"]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("old", ["a", "'a'", '"a"'])
def test_any_token_is_read_as_that_text(old: str, token: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(block(old, old))
    save(path, token, token)
    assert (config_of(path)["id-token"], config_of(path)["refresh-token"]) == (token, token)


def test_an_alias_is_replaced_and_its_anchor_stays(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("x: &t old\n" + block("*t", "*t"))
    save(path)
    assert path.read_text() == "x: &t old\n" + block(NEW_ID, NEW_REFRESH)


def flow(config: str) -> str:
    return f"users: [{{name: u, user: {{auth-provider: {{config: {config}}}}}}}]\n"


@pytest.mark.parametrize(
    "text",
    [
        block("&t old", "r") + "x: *t\n",
        "x: &c {id-token: a, refresh-token: b}\n" + flow("*c"),
        "x: &c {id-token: a}\n" + flow("&d {<<: *c, a: b}") + "y: *d\n",
    ],
    ids=["value", "mapping", "merged"],
)
def test_what_something_else_shares_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match="share an anchor with another value"):
        save(path)
    assert path.read_text() == text
    assert [file.name for file in tmp_path.iterdir()] == ["config"]


@pytest.mark.parametrize(
    "text", ["users: [{name: u}]", "users: [{name: u, user: {auth-provider: {config: x}}}]"]
)
def test_a_user_that_has_changed_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match="user 'u' has changed"):
        save(path)
    assert path.read_text() == text


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_the_mode_and_the_link_stay(mode: int, tmp_path: Path) -> None:
    path, link = tmp_path / "config", tmp_path / "link"
    path.write_text(block("a", "b"))
    path.chmod(mode)
    link.symlink_to(path)
    save(link)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert link.is_symlink()


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give a file away: run the tests as root"
)
def test_the_owner_stays(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(block("a", "b"))
    os.chown(path, 1234, 2345)
    save(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


@pytest.mark.needs("kubectl")
@pytest.mark.parametrize("case", ["plain", "tags", "JSON", "Windows", "byte order mark"])
def test_kubectl_reads_the_same_but_the_tokens(case: str, tmp_path: Path) -> None:
    def by_kubectl() -> Any:
        command = [str(components.path("kubectl")), "config", "view", "--raw", "-o", "json"]
        environ = {**os.environ, "KUBECONFIG": str(path)}
        done = subprocess.run(command, env=environ, capture_output=True, check=True)
        return json.loads(done.stdout)

    path = tmp_path / "config"
    path.write_text(CASES[case][0], newline="")
    expected = by_kubectl()
    user = next(entry for entry in expected["users"] if entry["name"] == "u")
    config = user["user"]["auth-provider"]["config"]
    config.update({"id-token": NEW_ID, "refresh-token": NEW_REFRESH})
    save(path)
    assert by_kubectl() == expected
