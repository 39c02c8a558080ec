import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest
import trustme
import yaml

from listwatch.apiserver import EmbeddedAPIServer
from listwatch.apiserver.http.tls import generated_tls, tls_from_files
from listwatch.apiserver.user import User
from listwatch.errors import ConfigError

_REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def whoami(
    server: EmbeddedAPIServer, context: ssl.SSLContext, headers: dict[str, str] | None = None
) -> tuple[int, object]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + _REVIEW, json={}, ssl=context, headers=headers) as answer,
    ):
        body = await answer.json()
        return answer.status, body["status"]["userInfo"] if answer.status == 201 else body


async def test_a_client_certificate_names_user_and_groups(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    server_certificate = authority.issue_cert("127.0.0.1")
    names = {"cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem", "ca": tmp_path / "ca.pem"}
    server_certificate.private_key_pem.write_to_path(str(names["key"]))
    for blob in server_certificate.cert_chain_pems:
        blob.write_to_path(str(names["cert"]), append=True)
    authority.cert_pem.write_to_path(str(names["ca"]))
    tls = tls_from_files(names["cert"], names["key"], names["ca"])
    tokens = {"secret": User("carol", ("system:authenticated",))}
    async with EmbeddedAPIServer(tls=tls, tokens=tokens) as server:
        assert server.url.startswith("https://127.0.0.1:")
        plain = ssl.create_default_context(cafile=str(names["ca"]))
        known = ssl.create_default_context(cafile=str(names["ca"]))
        issued = authority.issue_cert(common_name="alice", organization_name="devs")
        issued.configure_cert(known)
        status, user = await whoami(server, known)
        groups = ["devs", "system:authenticated"]
        assert (status, user) == (201, {"username": "alice", "groups": groups})
        status, user = await whoami(server, plain, {"Authorization": "Bearer secret"})
        assert (status, user) == (
            201,
            {"username": "carol", "groups": ["system:authenticated"]},
        )
        assert (await whoami(server, plain))[0] == 403
        foreign = ssl.create_default_context(cafile=str(names["ca"]))
        stranger.issue_cert(common_name="mallory").configure_cert(foreign)
        with pytest.raises(aiohttp.ClientError):
            await whoami(server, foreign)


async def test_a_generated_authority_stands_in_the_kubeconfig(tmp_path: Path) -> None:
    async with EmbeddedAPIServer(tls=generated_tls("127.0.0.1")) as server:
        text = server.kubeconfig()
        config = yaml.safe_load(text)
        assert set(config["clusters"][0]["cluster"]) == {"server", "certificate-authority-data"}
        assert set(config["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            return
        path = tmp_path / "kubeconfig"
        path.write_text(text)

        answer = await asyncio.to_thread(
            subprocess.run,
            # not `auth whoami`, which older kubectls lack
            [kubectl, "--kubeconfig", str(path), "auth", "can-i", "--list"],
            capture_output=True,
            text=True,
            env={"HOME": str(tmp_path)},
            check=True,
        )
        everything = answer.stdout.splitlines()[1].split()
        assert (everything[0], everything[-1]) == ("*.*", "[*]")


@pytest.mark.parametrize("missing", ["cert", "ca"])
def test_a_certificate_that_can_not_be_read_is_named(tmp_path: Path, missing: str) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    broken = tmp_path / "broken.pem"
    broken.write_text("nonsense")
    paths = (broken, key, None) if missing == "cert" else (certificate, key, broken)
    with pytest.raises(ConfigError, match=r"broken\.pem"):
        tls_from_files(*paths)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com"])  # noqa: S104 - refused
def test_an_open_server_beyond_loopback_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="everybody who reaches this machine"):
        EmbeddedAPIServer(host)


async def test_beyond_loopback_nobody_is_anonymous() -> None:
    tokens = {"secret": User("root", ("system:masters",))}
    async with EmbeddedAPIServer("0.0.0.0", tokens=tokens) as server:  # noqa: S104 - with tokens
        url = f"http://127.0.0.1:{server.port}/healthz"
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as answer:
                assert answer.status == 401
            async with session.get(url, headers={"Authorization": "Bearer secret"}) as answer:
                assert answer.status == 200


def test_the_test_api_is_for_this_machine_alone() -> None:
    tokens = {"secret": User("root", ("system:masters",))}
    with pytest.raises(ConfigError, match="could control the server"):
        EmbeddedAPIServer("0.0.0.0", tokens=tokens, test_api=True)  # noqa: S104 - refused
