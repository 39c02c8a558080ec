import base64
import ssl
from pathlib import Path
from typing import Any

import pytest

from listwatch import Client
from listwatch.clock import FakeClock
from listwatch.errors import ConfigError, ConflictError
from listwatch.webhooks.certificate_files import FileSource
from listwatch.webhooks.certificates import (
    LIFETIME,
    CertificateError,
    ServingCertificate,
    as_bundle,
    make_certificate,
    read_authorities,
    read_certificate,
)
from listwatch.webhooks.rotation import Stored
from listwatch.webhooks.secret import ReadSecret, SecretStore
from listwatch.webhooks.server import ServingContext

NOW = 1_700_000_000.0
NAMES = ("hooks.default.svc", "127.0.0.1")


@pytest.fixture(scope="module")
def one() -> ServingCertificate:
    return make_certificate(NAMES, NOW)


@pytest.fixture(scope="module")
def other() -> ServingCertificate:
    return make_certificate(NAMES, NOW)


def test_a_certificate_is_for_its_names_and_time_and_its_repr_has_no_key(
    one: ServingCertificate,
) -> None:
    assert one.names == NAMES
    assert (one.not_before, one.not_after) == (NOW - 3600, NOW + LIFETIME)
    assert one.authority.not_after == NOW + LIFETIME
    assert b"PRIVATE KEY" in one.key
    assert repr(one) == (
        "<ServingCertificate hooks.default.svc, 127.0.0.1 until 2024-02-12T22:13:20Z>"
    )


def test_authorities_of_a_bundle_are_those_put_in_once_each(
    one: ServingCertificate, other: ServingCertificate
) -> None:
    given = (one.authority, other.authority)
    assert read_authorities(as_bundle([*given, one.authority])) == given
    assert read_authorities(b"") == ()
    assert all(authority.ours for authority in given)


def test_another_organization_s_authority_is_not_ours() -> None:
    import trustme

    (found,) = read_authorities(trustme.CA(organization_name="others").cert_pem.bytes())
    assert not found.ours


@pytest.mark.parametrize(
    ("certificate", "key", "words"),
    [
        (b"", b"", "there is no certificate in it"),
        (b"nothing", b"", "it is no PEM"),
        (
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            b"",
            "it is no certificate",
        ),
        (None, b"nothing", "its key is no unencrypted private key in PEM"),
        (None, None, "its key is of another certificate"),
    ],
)
def test_what_is_no_certificate_is_refused_in_words(
    certificate: Any, key: Any, words: str, one: ServingCertificate, other: ServingCertificate
) -> None:
    with pytest.raises(CertificateError, match=words):
        read_certificate(
            one.certificate if certificate is None else certificate,
            other.key if key is None else key,
            b"",
        )


def test_a_server_uses_a_certificate_without_a_file_on_disk(one: ServingCertificate) -> None:
    context = ServingContext()
    context.use(one.certificate, one.key)
    assert context.ssl.minimum_version == ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigError, match="the certificate and key can't be used"):
        context.use(one.certificate, b"nothing")


# --- In a Secret ---


async def test_a_secret_keeps_certificates_and_refuses_an_outdated_writer(
    client: Client, one: ServingCertificate, other: ServingCertificate
) -> None:
    store = SecretStore(client, "default", "hooks")
    empty = await store.read()
    assert empty == ReadSecret(None, None)
    await store.write(empty, Stored(one))
    with pytest.raises(ConflictError):
        await store.write(empty, Stored(other))
    first = await store.read()
    assert first.stored == Stored(one)
    await store.write(first, Stored(one, other))
    with pytest.raises(ConflictError):
        await store.write(first, Stored(other))
    second = await store.read()
    assert second.stored == Stored(one, other)
    await store.write(second, Stored(other))
    assert (await store.read()).stored == Stored(other)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "it lacks one of tls.crt, tls.key, ca.crt"),
        ({"tls.crt": b"x", "tls.key": b"x", "ca.crt": b"x"}, "it is no PEM"),
    ],
)
async def test_a_secret_without_a_usable_certificate_is_written_anew(
    client: Client,
    data: dict[str, bytes],
    words: str,
    one: ServingCertificate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await _create(client, data)
    store = SecretStore(client, "default", "hooks")
    found = await store.read()
    assert found.stored is None
    assert words in caplog.text
    await store.write(found, Stored(one))
    assert (await store.read()).stored == Stored(one)


async def _create(client: Client, data: dict[str, bytes]) -> None:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    metadata = {"name": "hooks", "namespace": "default"}
    await client.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}
    )


# --- In files ---


def put(directory: Path, certificate: ServingCertificate, *, authority: bool = True) -> None:
    (directory / "tls.crt").write_bytes(certificate.certificate)
    (directory / "tls.key").write_bytes(certificate.key)
    if authority:
        (directory / "ca.crt").write_bytes(certificate.authority.pem)


async def test_files_are_read_again_after_a_change_and_old_authorities_stay(
    tmp_path: Path, one: ServingCertificate, other: ServingCertificate
) -> None:
    clock = FakeClock(time=NOW)
    source = FileSource(tmp_path, clock)
    put(tmp_path, one)
    assert await source.look([], leads=True) == (one, (one.authority,))
    assert await source.look([], leads=True) == (None, (one.authority,))
    put(tmp_path, other)
    assert await source.look([], leads=True) == (other, (other.authority, one.authority))
    clock.stall(LIFETIME + 1)
    assert await source.look([], leads=True) == (None, ())


async def test_without_an_authority_in_the_files_others_publish_it(
    tmp_path: Path, one: ServingCertificate
) -> None:
    source = FileSource(tmp_path, FakeClock(time=NOW))
    put(tmp_path, one, authority=False)
    found, authorities = await source.look([], leads=True)
    assert found is not None
    assert found.certificate == one.certificate
    assert authorities is None


async def test_a_missing_or_torn_file_is_named_and_tried_again(
    tmp_path: Path, one: ServingCertificate, other: ServingCertificate
) -> None:
    source = FileSource(tmp_path, FakeClock(time=NOW))
    with pytest.raises(ConfigError, match=r"tls\.crt does not exist: mount the Secret"):
        await source.look([], leads=True)
    put(tmp_path, one)
    (tmp_path / "tls.key").write_bytes(other.key)
    with pytest.raises(ConfigError, match=r"tls\.crt is unusable: its key is of another"):
        await source.look([], leads=True)
    (tmp_path / "ca.crt").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"ca\.crt is unusable: it is no PEM"):
        await source.look([], leads=True)
    put(tmp_path, one)
    assert (await source.look([], leads=True))[0] == one
