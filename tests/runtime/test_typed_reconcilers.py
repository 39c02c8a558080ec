"""Reconcilers, listers and writes of a type use objects of that type."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from listwatch.apiserver.server import EmbeddedAPIServer
from listwatch.client.client import Client
from listwatch.client.config import Config
from listwatch.errors import ConflictError
from listwatch.resources import ObjectMeta, definition
from listwatch.runtime.manager import Manager
from listwatch.runtime.writing import (
    finalize,
    is_owned_by,
    owner_reference,
    set_owner,
    update_status,
)
from listwatch.sync import connect
from listwatch.testing import eventually
from runtime.typed_program import Backup, Part, Website, WebsiteSpec, WebsiteStatus, make_app

TYPED = Path(__file__).with_name("typed_program.py")
WEBSITE = Path(__file__).parents[2] / "examples" / "website"


def newer(cls: type) -> dict[str, Any]:
    """Return the definition of a newer version of a type, which has more fields."""
    manifest = definition(cls)
    schema = manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for field in ("spec", "status"):
        if (part := schema["properties"].get(field)) is not None:
            part["x-kubernetes-preserve-unknown-fields"] = True
            if (parts := part["properties"].get("parts")) is not None:
                parts["items"]["x-kubernetes-preserve-unknown-fields"] = True
    return manifest


@pytest.fixture
async def config(server: EmbeddedAPIServer, client: Client) -> Config:
    for cls in (Website, Backup):
        made = await client.create(newer(cls))
        await client.wait_for("crds", made.name, "Established", seconds=20)
    return Config(server=server.url, namespace="default")


def website(name: str, **spec: Any) -> Website:
    meta = ObjectMeta(name=name, namespace="default")
    return Website(meta, WebsiteSpec(**{"host": f"{name}.example.com"} | spec))


#: A status with fields that the type does not have.
NEWER = {"url": "https://shop", "parts": [{"name": "a", "size": 3}, {"name": "b", "size": 5}]}


async def with_newer_status(client: Client) -> Website:
    await client.create(website("shop"))
    await client.patch("websites", "shop", {"status": NEWER}, "default", subresource="status")
    return await client.get(Website, "shop", "default")


async def test_a_reconciler_of_a_type_reads_and_writes_its_objects(
    config: Config, client: Client
) -> None:
    await with_newer_status(client)
    app, done = make_app(config=config)
    async with app:
        await eventually(lambda: done == ["shop is one of 1"])
        stored = await client.get("websites", "shop", "default")
        status = stored["status"]
        assert status["url"] == "https://shop"
        assert [(part["size"], part["ready"]) for part in status["parts"]] == [(3, True), (5, True)]
        assert [one["message"] for one in status["conditions"]] == ["shop.example.com"]
        backup = await client.get(Backup, "shop", "default")
        assert is_owned_by(backup, await client.get(Website, "shop", "default"))
        await client.delete(Website, "shop", "default")
        await eventually(lambda: "shop is cleaned up" in done)
        await eventually(lambda: done[-1] == "default/shop is gone")
    assert [reconciler.name for reconciler in app.reconcilers] == ["websites"]


async def test_an_object_that_does_not_fit_is_reconciled_again_only_when_it_changes(
    config: Config, client: Client
) -> None:
    class Narrow(msgspec.Struct):
        spec: dict[str, int]

    await client.create(website("shop"))
    app = Manager("narrow", config=config, health_port=None)
    narrow = app.reconciler("narrow").for_("websites.example.com", decode=Narrow)
    calls = asyncio.Semaphore(0)

    @narrow
    async def reconcile(key: str) -> None:
        calls.release()
        narrow.get(key)

    async with app:
        await calls.acquire()
        await eventually(lambda: narrow.statistics().terminal_errors == 1)
        assert narrow.queue.num_requeues("default/shop") == 0


@pytest.mark.usefixtures("config")
async def test_a_status_of_an_object_read_elsewhere_keeps_what_the_type_lacks(
    client: Client,
) -> None:
    read = await with_newer_status(client)
    assert read.status is not None
    same = await update_status(client, read, read.status)
    assert same is None
    read.status.parts[1].ready = True
    written = await update_status(client, read, read.status)
    assert written is not None
    assert written.status == WebsiteStatus([Part("a"), Part("b", ready=True)])
    status = (await client.get("websites", "shop", "default")).to_dict()["status"]
    assert status["url"] == "https://shop"
    assert status["parts"] == [
        {"name": "a", "size": 3, "ready": False},
        {"name": "b", "size": 5, "ready": True},
    ]
    with pytest.raises(ConflictError, match=r"Website default/shop has changed"):
        await update_status(client, read, WebsiteStatus())


@pytest.mark.usefixtures("config")
async def test_a_finalizer_is_kept_on_an_object_of_a_type(client: Client) -> None:
    cleaned: list[str] = []

    async def clean_up(gone: Website) -> None:
        cleaned.append(gone.metadata.name)

    made = await client.create(website("shop"))
    held = await finalize(client, made, "example.com/f", clean_up)
    assert held is not None
    assert held.metadata.finalizers == ["example.com/f"]
    assert await finalize(client, held, "example.com/f", clean_up) is held
    await client.delete(Website, "shop", "default")
    leaving = await client.get(Website, "shop", "default")
    assert await finalize(client, leaving, "example.com/f", clean_up) is None
    assert cleaned == ["shop"]
    await client.wait_for_deletion(Website, "shop", "default", seconds=20)


@pytest.mark.usefixtures("config")
async def test_an_object_of_a_type_owns_others(client: Client) -> None:
    owner = await client.create(website("shop"))
    assert owner_reference(owner, controller=False) == {
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "name": "shop",
        "uid": owner.metadata.uid,
    }
    child: dict[str, Any] = {"kind": "ConfigMap", "metadata": {"namespace": "default"}}
    set_owner(child, owner)
    assert child["metadata"]["ownerReferences"] == [owner_reference(owner)]


def test_what_is_no_object_of_a_resource_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match="WebsiteSpec is not a resource: decorate its class"):
        owner_reference(WebsiteSpec("a"))
    with pytest.raises(TypeError, match="WebsiteSpec is no resource: decorate it"):
        Manager("x").reconciler(WebsiteSpec)


def test_a_type_names_its_reconciler_and_its_version() -> None:
    app, _ = make_app()
    assert [str(cache.selection) for cache in app.caches] == [
        "websites.v1.example.com",
        "backups.v1.example.com",
        "configmaps",
    ]
    with pytest.raises(ValueError, match="a reconciler websites already exists"):
        app.reconciler(Website)


async def test_an_informer_without_asyncio_takes_the_type(config: Config, client: Client) -> None:
    await client.create(website("shop"))

    def read() -> list[str]:
        with connect(config) as cluster:
            websites = cluster.informer(Website)
            websites.wait_for_sync(20)
            assert cluster.get(Website, "shop", "default").spec.replicas == 1
            return [one.spec.host for one in websites.lister.list()]

    assert await asyncio.to_thread(read) == ["shop.example.com"]


@pytest.mark.proof  # `make lint` checks the programs with mypy too
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
@pytest.mark.parametrize(
    "files",
    [[TYPED], [WEBSITE / "controller.py", WEBSITE / "website_types.py"]],
    ids=["typed", "website"],
)
def test_strict_type_checkers_accept_typed_programs(
    checker: str, files: list[Path], tmp_path: Path
) -> None:
    """And they check it: a wrong line is an error."""
    command = shutil.which(checker, path=Path(sys.executable).parent)
    if command is None:
        pytest.skip(f"pip install {checker}, for this check of the types")
    for path in files:
        shutil.copy(path, tmp_path)
    program = tmp_path / files[0].name
    program.write_text(program.read_text() + "\n\nwrong: int = make_app()\n")
    if checker == "mypy":
        arguments = ["--strict", "--no-incremental"]
    else:
        settings = {"include": ["*.py"], "typeCheckingMode": "strict"}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
        arguments = ["--pythonpath", sys.executable]
    done = subprocess.run(
        [command, *arguments, str(program)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    line = len(program.read_text().splitlines())
    errors = [text for text in done.stdout.splitlines() if "error:" in text or " - error" in text]
    assert [f":{line}:" in text for text in errors] == [True], done.stdout
