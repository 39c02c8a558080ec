"""The template languages, by the names that `--output` gives them."""

from enum import StrEnum
from pathlib import Path

from listwatch.observe.templates.go_template import GoTemplate
from listwatch.observe.templates.jsonpath import JSONPathTemplate
from listwatch.observe.templates.template import Template, TemplateSyntaxError


class TemplateFormat(StrEnum):
    """A template language, and whether the text names a template file."""

    JSONPATH = "jsonpath"
    JSONPATH_FILE = "jsonpath-file"
    JSONPATH_AS_JSON = "jsonpath-as-json"
    GO_TEMPLATE = "go-template"
    GO_TEMPLATE_FILE = "go-template-file"
    JINJA2 = "jinja2"
    JQ = "jq"
    TEMPLATE = "template"
    TEMPLATE_FILE = "templatefile"

    @property
    def is_file(self) -> bool:
        """Whether the text names a file."""
        return self.endswith("file")


def make_template(
    template_format: TemplateFormat, text: str, *, allow_missing_keys: bool
) -> Template:
    """Return the template for a text in one of the languages.

    Raises:
        TemplateSyntaxError: the text is not a template.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:  # command-line bytes that are not UTF-8
        raise TemplateSyntaxError(f"the template {text!a} is not UTF-8") from error
    if template_format.startswith("jsonpath"):
        return JSONPathTemplate(
            text,
            allow_missing_keys=allow_missing_keys,
            as_json=template_format is TemplateFormat.JSONPATH_AS_JSON,
        )
    if template_format in {TemplateFormat.JINJA2, TemplateFormat.JQ}:
        from listwatch.observe.templates.worker import WorkerTemplate  # noqa: PLC0415 - slow to load

        return WorkerTemplate(template_format, text, allow_missing_keys=allow_missing_keys)
    return GoTemplate(text, allow_missing_keys=allow_missing_keys)


def read_template_file(path: Path) -> str:
    """Return the text of a template file.

    Raises:
        TemplateSyntaxError: the file can't be read as text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateSyntaxError(f"unable to read the template file {path}: {error}") from error
