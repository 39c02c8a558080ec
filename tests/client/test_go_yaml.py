"""YAML is parsed as kubectl parses it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import components
from listwatch.client import go_yaml
from listwatch.client.kubeconfig import load_config
from listwatch.errors import ConfigError

TEXTS = [
    *(
        "2024-01-01",
        "2024-01-01T00:00:00Z",
        "1:30",
        "12:30:45",
        "yEs",
        "tRue",
        "=",
        ".",
        "..",
        "0b2",
    ),
    *("0x", "0xg", "1e999", "nan", "inf", "1.2.3", "+", "1e", "e5", "_1", "._1", ".1_", ".5_e3"),
    *("1,000", "a:b", "a#b", "0o8", "0b", "0x1.8p1", "1p3", "-.inf5", "-x", "?x"),
]
NUMBERS = {
    "12e5": 1200000, "1e3": 1000, "1E+3": 1000, ".5": 0.5, "5.": 5, "1_000": 1000, "0x1F": 31,
    "0X1f": 31, "0b101": 5, "0o17": 15, "017": 15, "08": 8, "09.5": 9.5, "-0": 0, "+5": 5,
    "-0x1F": -31, "-0b11": -3, "18446744073709551615": 2**64 - 1, "00": 0, "0_0": 0, "1__0": 10,
    ".1_0": 0.1, "12_e4": 120000, "1e-3": 0.001, "5e9": 5_000_000_000,
}  # fmt: skip
TRUE = ("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE")
FALSE = ("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE")
TAGGED = {
    "!!str 12": "12", '!!int "3"': 3, "!!float 3": 3, '!!bool "yes"': True, "!foo bar": "bar",
    "! 12": "12", "!!binary aGk=": "hi", "!!timestamp 2001-01-01": "2001-01-01", "'y'": "y",
    '"12e45"': "12e45", "!!set {a, b: }": {"a": None, "b": None},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, text) for text in TEXTS),
        *NUMBERS.items(),
        *((text, True) for text in TRUE),
        *((text, False) for text in FALSE),
        *((text, None) for text in ("~", "null", "Null", "NULL")),
        *TAGGED.items(),
    ],
)
def test_a_scalar_is_what_go_takes_it_for(text: str, value: object) -> None:
    loaded = go_yaml.load(f"v: {text}\n")
    assert loaded == {"v": value}
    assert isinstance(loaded, dict)
    assert type(loaded["v"]) is type(value)


HEAD = "apiVersion: v1\nkind: Config\nextensions:\n- name: e\n  extension:\n"
DOCUMENTS: dict[str, tuple[str, object]] = {
    "a tab after a colon": ("    v:\tx\n", {"v": "x"}),
    "a tab before a colon": ("    v\t: x\n", {"v": "x"}),
    "a tab after a dash": ("    v:\n    -\tx\n", ConfigError),
    "tabs in flow": ("    v: {a:\tb,\tc: d}\n", {"v": {"a": "b", "c": "d"}}),
    "a tab at the end": ("    v: x\t\n", {"v": "x"}),
    "a tab before a comment": ("    v: x\t# c\n", {"v": "x"}),
    "a tab in a text": ("    v: a\tb \t c\n", {"v": "a\tb \t c"}),
    "a line of a tab": ("    v: x\n\t\n    w: z\n", ConfigError),
    "dashes at the end": ("    v: x\n---\n", {"v": "x"}),
    "dots at the end": ("    v: x\n...\n", {"v": "x"}),
    "a second document": ("    v: x\n---\nkind: List\n", {"v": "x"}),
    "a second document that is none": ("    v: x\n---\n[[{: \t@\n", {"v": "x"}),
    "a key twice": ("    v: x\n    v: z\n", {"v": "z"}),
    "keys that are no texts": ("    1: x\n    true: z\n", {"1": "x", "true": "z"}),
    "a merge": ("    a: &a {v: x, w: z}\n    b: {v: y, <<: *a}\n", None),
    "merges": ("    a: &a {v: x}\n    b: &b {v: y}\n    c: {<<: [*a, *b]}\n", None),
    "an alias": ("    a: &a [x]\n    b: *a\n", {"a": ["x"], "b": ["x"]}),
    "an anchor in itself": ("    v: &a [*a]\n", ConfigError),
    "an unknown alias": ("    v: *a\n", ConfigError),
    "infinity": ("    v: .inf\n", ConfigError),
    "a tag that does not fit": ("    v: !!null x\n", ConfigError),
    "a key that is a list": ("    ? [a]\n    : x\n", ConfigError),
    "a null key": ("    ~: x\n", ConfigError),
    "an indentation by a tab": ("\tv: x\n", ConfigError),
    "a control character": ("    v: a\x01b\n", ConfigError),
}
ENCODINGS = {
    "UTF-8": b"",
    "UTF-8 with a mark": b"\xef\xbb\xbf",
    "UTF-16": b"\xff\xfe",
    "UTF-16, big": b"\xfe\xff",
}


def encoded(text: str, encoding: str) -> bytes:
    codec = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(ENCODINGS[encoding], "utf-8")
    return ENCODINGS[encoding] + text.encode(codec)


def ours(content: bytes) -> object:
    try:
        loaded: Any = go_yaml.load(go_yaml.decode_text(content)[0])
    except go_yaml.YAMLError:
        return ConfigError
    return loaded["extensions"][0]["extension"]


def kubectls(content: bytes, path: Path) -> object:
    path.write_bytes(content)
    command = [str(components.path("kubectl")), "config", "view", "--raw", "-o", "json"]
    environ = {**os.environ, "KUBECONFIG": str(path)}
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    if done.returncode:
        return ConfigError
    return json.loads(done.stdout)["extensions"][0]["extension"]


@pytest.mark.parametrize("case", DOCUMENTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_document_is_what_go_takes_it_for(case: str, encoding: str) -> None:
    text, value = DOCUMENTS[case]
    if value is not None:
        assert ours(encoded(HEAD + text, encoding)) == value


@pytest.mark.needs("kubectl")
def test_kubectl_takes_all_documents_for_the_same(tmp_path: Path) -> None:
    for case, (text, _) in DOCUMENTS.items():
        for encoding in ENCODINGS:
            content = encoded(HEAD + text, encoding)
            assert ours(content) == kubectls(content, tmp_path / "config"), (case, encoding)


@pytest.mark.needs("kubectl")
def test_kubectl_takes_all_scalars_for_the_same(tmp_path: Path) -> None:
    scalars = [*TEXTS, *NUMBERS, *TRUE, *FALSE, "~", "null", *TAGGED]
    lines = "".join(f"    v{number}: {text}\n" for number, text in enumerate(scalars))
    content = (HEAD + lines).encode()
    assert ours(content) == kubectls(content, tmp_path / "config")


def test_texts_that_look_like_something_else_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "current-context: 2024-01-01\n"
        "contexts: [{name: 2024-01-01, context: {cluster: 1:30, namespace: 12:30:45}}]\n"
        "clusters: [{name: 1:30, cluster: {server: 'https://x', insecure-skip-tls-verify: y}}]\n"
    )
    config = load_config(path)
    assert (config.namespace, config.insecure_skip_tls_verify) == ("12:30:45", True)


@pytest.mark.parametrize("name", ["5", "y", "1e3"])
def test_a_name_that_is_no_text_is_told(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"contexts: [{{name: {name}, context: {{cluster: c}}}}]\n")
    with pytest.raises(ConfigError, match=r"contexts\[0\] has no name"):
        load_config(path)


@pytest.mark.parametrize("kind", ["cluster", "user", "context"])
def test_two_entries_of_one_name_are_refused_in_one_file_only(kind: str, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    entries = {
        "cluster": "{name: c, cluster: {server: 'https://x'}}",
        "user": "{name: u, user: {token: t}}",
        "context": "{name: x, context: {cluster: c, user: u}}",
    }
    lines = [f"{name}s: [{entry}]\n" for name, entry in entries.items()]
    first.write_text("".join(["current-context: x\n", *lines]))
    second.write_text("".join(lines))
    environ = {"KUBECONFIG": f"{first}:{second}"}
    assert load_config(environ=environ).server == "https://x"
    second.write_text(f"{kind}s: [{entries[kind]}, {entries[kind]}]\n")
    name = entries[kind][7]
    with pytest.raises(ConfigError, match=rf"{second}: two {kind}s have the name '{name}'; rename"):
        load_config(environ=environ)
