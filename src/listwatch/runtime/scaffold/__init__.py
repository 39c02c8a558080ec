"""Writes a new controller project.

The files next to this module are a whole project, the example "website"; a new project is the same
with other names.
"""

import re
from importlib.resources import files
from pathlib import Path
from typing import Self

import msgspec

from listwatch.errors import ConfigError
from listwatch.objects.resource_types import plural_of
from listwatch.selector import subdomain_problems

_NAME = re.compile(r"[a-z]([a-z0-9]{0,39})")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")

#: The project's files: the name here, and the name in the example.
_FILES = {
    "website_types.py.txt": "website_types.py",
    "controller.py.txt": "controller.py",
    "test_website.py.txt": "tests/test_website.py",
    "test_controller.py.txt": "tests/test_controller.py",
    "test_simulation.py.txt": "tests/test_simulation.py",
    "Dockerfile.txt": "Dockerfile",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
}


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What the resource of a project is called."""

    singular: str
    plural: str
    kind: str
    group: str

    @classmethod
    def of(
        cls, name: str, *, group: str, kind: str | None = None, plural: str | None = None
    ) -> Self:
        """Return the names for a resource; missing ones are derived from `name`.

        Raises:
            ConfigError: a name that a resource can't have.
        """
        for word in (name, plural or name):
            if not _NAME.fullmatch(word):
                raise ConfigError(
                    f"{word!r} is not a resource name: use up to 40 lower-case letters and digits, "
                    "like 'website'"
                )
        kind = kind or name.capitalize()
        if not _KIND.fullmatch(kind):
            raise ConfigError(f"{kind!r} is not a kind: write it in CamelCase, like 'Website'")
        if "." not in group or subdomain_problems(group):
            raise ConfigError(f"{group!r} is not an API group: use a domain, like 'example.com'")
        return cls(singular=name, plural=plural or plural_of(name), kind=kind, group=group)

    def fill(self, text: str) -> str:
        """Return the example's text with these names in place of its own."""
        words = {
            "websites": self.plural,
            "website": self.singular,
            "Website": self.kind,
            "example.com": self.group,
        }
        return re.sub(
            r"websites|website|Website|example\.com", lambda found: words[found.group()], text
        )


def write_project(directory: Path, names: Names) -> list[Path]:
    """Write a project, and return its files.

    Raises:
        ConfigError: one of the files is there already; then none is written.
    """
    templates = files(__name__)
    contents = {
        directory / names.fill(there): names.fill(
            templates.joinpath(here).read_text(encoding="utf-8")
        )
        for here, there in _FILES.items()
    }
    for path in contents:
        if path.exists():
            raise ConfigError(
                f"{path} already exists: nothing was written; choose another directory"
            )
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(contents)
