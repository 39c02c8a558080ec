"""The template languages that need extra packages: Jinja2 and jq.

Neither limits the cost of a template, so they run in a worker (worker.py).
"""

from typing import Any, Final

import msgspec

from listwatch.observe.templates.template import (
    TemplateError,
    TemplateSyntaxError,
    json_text,
    scalar_text,
)


class Jinja2Template:
    """A Jinja2 template; its variables are the object's fields, and `object`.

    Args:
        text: the template.
        allow_missing_keys: a missing field renders as nothing instead of an error.

    Raises:
        ImportError: Jinja2 is not installed.
        MemoryError: a constant of it needs too much memory.
        TemplateSyntaxError: the text is not a template.
    """

    def __init__(self, text: str, *, allow_missing_keys: bool = True) -> None:
        import jinja2  # noqa: PLC0415 - an extra
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - as above

        self._errors: tuple[type[Exception], ...] = (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        )
        missing = jinja2.ChainableUndefined if allow_missing_keys else jinja2.StrictUndefined
        # It is an argument, not a page: nothing is escaped.
        environment = ImmutableSandboxedEnvironment(autoescape=False, undefined=missing)
        del environment.globals["lipsum"]  # random text is useless here
        try:
            self._template = environment.from_string(text)
        except self._errors as error:  # constants are evaluated when it is parsed
            raise TemplateSyntaxError(f"error parsing jinja2 template {text}: {error}") from error

    def render(self, raw: bytes) -> str:
        """Return the text for an object's JSON.

        Raises:
            MemoryError: it needs too much memory.
            TemplateError: a field is missing and that is not allowed, or has the wrong type, or the
                text can't be encoded as UTF-8.
        """
        fields = msgspec.json.decode(raw)
        try:
            text = self._template.render({**fields, "object": fields})
            text.encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start : error.start + 1]
            raise TemplateError(f"jinja2: {half!a} is half a character") from error
        except self._errors as error:
            raise TemplateError(f"jinja2: {error}") from error
        return text


#: A program gets only its object: jq's access to the process and its files is hidden.
_HIDDEN: Final = (
    "def env: {}; def get_search_list: []; def get_jq_origin: null; def get_prog_origin: null;"
    ' def input_filename: null; def input: error("there is one object alone"); def inputs: empty;'
    " def input_line_number: 0;"
    ' def modulemeta: error("modules can\'t be used");'
    " {} as $ENV | "
)


class JqTemplate:
    """A jq program; its results are joined by newlines, strings unquoted, the rest as JSON.

    It sees only its object: no environment, no files, no modules.

    Args:
        text: the program.
        allow_missing_keys: write a null result as "null" instead of an error.

    Raises:
        ImportError: jq is not installed.
        TemplateSyntaxError: the text is not a program.
    """

    def __init__(self, text: str, *, allow_missing_keys: bool = True) -> None:
        import jq  # type: ignore[import-not-found] # noqa: PLC0415 - an extra without types

        self._allow_missing = allow_missing_keys
        try:
            # Within a function's body, no module can be imported and no unopened parenthesis
            # closed.
            jq.compile(f"def program: {text}\n; .")
            self._program = jq.compile(f"{_HIDDEN}({text}\n)")
        except ValueError as error:
            raise TemplateSyntaxError(f"error parsing jq program {text}: {error}") from error

    def render(self, raw: bytes) -> str:
        """Return the text for an object's JSON.

        Raises:
            TemplateError: the program failed on it, or returned null and that is not allowed.
        """
        try:
            results = self._program.input_text(raw.decode()).all()
        except ValueError as error:
            raise TemplateError(f"jq: {error}") from error
        if not self._allow_missing and None in results:
            raise TemplateError("jq: the result is null")
        return "\n".join(map(_result_text, results))


def _result_text(value: Any) -> str:
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return scalar_text(value, null=json_text(None))
