"""MkDocs hooks: pages made of what stands elsewhere in the repository.

- `reference/PACKAGE.md` for each public package: an entry for each name in its `__all__`.
- Files outside of docs/ to which a page links, such as the programs in examples/. Markdown becomes
  a page; everything else becomes a page that shows the text.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = "reference"
# The folder of the site for files from outside of docs/.
REPOSITORY = "repository"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "sh", ".toml": "toml", ".json": "json"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the reference to the navigation."""
    entries = [{package: f"{REFERENCE}/{package}.md"} for package in public_packages()]
    config.nav = [*(config.nav or []), {"Reference": entries}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference and the linked files."""
    for package, names in public_packages().items():
        path = f"{REFERENCE}/{package}.md"
        files.append(File.generated(config, path, content=reference(package, names)))
    waiting = sorted(DOCS.rglob("*.md"))
    seen = set(waiting)
    while waiting:
        for target in outside_targets(waiting.pop()):
            if target not in seen:
                seen.add(target)
                files.append(File.generated(config, site_path(target), content=as_page(target)))
                waiting += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to where the files are in the site."""
    del config, files
    here = page.file.src_uri
    source = source_path(here)

    def moved(match: re.Match[str]) -> str:
        path = (source.parent / match[2]).resolve()
        if "://" in match[2] or not path.exists():
            return match[0]
        link = posixpath.relpath(site_path(path), posixpath.dirname(here))
        return f"{match[1]}{link}{match[3]}"

    return LINK.sub(moved, markdown) if source.exists() else markdown


def public_packages() -> dict[str, list[str]]:
    """Return the names in `__all__` by package, read from the source."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "src" / "listwatch").rglob("__init__.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                package = ".".join(file.parent.relative_to(ROOT / "src").parts)
                found[package] = ast.literal_eval(node.value)
    return found


def reference(package: str, names: list[str]) -> str:
    """Return the reference page of a package."""
    head = f"::: {package}\n    options: {{members: false, show_root_heading: false}}"
    return "\n\n".join([f"# {package}", head, *(f"::: {package}.{name}" for name in names)])


def outside_targets(page: Path) -> list[Path]:
    """Return the files of the repository outside of docs/ to which a page links."""
    paths = [
        (page.parent / target).resolve()
        for _, target, _ in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    return [path for path in paths if path.is_file() and not path.is_relative_to(DOCS)]


def site_path(path: Path) -> str:
    """Return where a file of the repository is in the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    inner = f"{REPOSITORY}/{path.relative_to(ROOT).as_posix()}"
    return inner if path.suffix == ".md" else f"{inner}.md"


def source_path(site: str) -> Path:
    """Return the file of the repository that a page of the site shows."""
    if not site.startswith(f"{REPOSITORY}/"):
        return DOCS / site
    path = ROOT / site.removeprefix(f"{REPOSITORY}/")
    return path if path.exists() else path.with_suffix("")


def as_page(path: Path) -> str:
    """Return a file's text as a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {path.relative_to(ROOT).as_posix()}\n\n````{language}\n{text}````\n"
