"""A program whose manifests are made."""

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from listwatch.runtime.packaging.commands import manifests_command

SOURCE = """
import msgspec
from listwatch import Manager
from listwatch.resources import ObjectMeta, resource

class Spec(msgspec.Struct):
    '''A spec with {{ braces }}.'''
    image: str

@resource("example.com", "v1")
class Website(msgspec.Struct):
    metadata: ObjectMeta
    spec: Spec
    status: dict[str, int] | None = None

app = Manager("web", ELECTION)
sites = app.reconciler(Website).owns("deployments.apps").reads("nodes")
sites.reads("configmaps", namespace="settings")
sites.writes("deployments.apps", "create", "patch").writes("websites.example.com/status", "patch")

@sites
async def reconcile(key): ...

@app.validate(Website)
def check(request): ...

print("its own output")
app.run()
"""


def write_program(directory: Path, *, election: str = "leader_election='web'") -> Path:
    path = directory / "controller.py"
    path.write_text(SOURCE.replace("ELECTION", election))
    return path


def make(path: Path, *options: str, code: int = 0) -> Any:
    """Run `listwatch manifests`, and return its result."""
    done = CliRunner().invoke(manifests_command, [str(path), *options])
    assert done.exit_code == code, (done.output, done.exception)
    return done
