"""Templates in Go's text/template language, as far as kubectl users need it.

Everything of text/template but methods of values and the function `call`, and the functions of
kubectl. Anything unsupported is refused by name when the template is parsed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from listwatch.objects import Object
from listwatch.observe.templates.go_functions import FUNCTIONS, truth, type_name, value_text
from listwatch.observe.templates.go_syntax import (
    Branch,
    Field,
    Function,
    Group,
    Include,
    Jump,
    Literal,
    Node,
    Pipeline,
    Term,
    Text,
    Variable,
    parse,
)
from listwatch.observe.templates.template import (
    Effort,
    TemplateError,
    TemplateLimitError,
    TemplateSyntaxError,
)

_NO_VALUE = "<no value>"


class GoTemplate:
    """A Go template.

    Args:
        text: the template.
        allow_missing_keys: a missing key prints `<no value>` instead of raising.

    Raises:
        TemplateSyntaxError: the text is not a template, or uses something unsupported.
    """

    def __init__(self, text: str, *, allow_missing_keys: bool = True) -> None:
        try:
            self._tree = parse(text, {*FUNCTIONS, "and", "or"})
        except RecursionError:
            raise TemplateSyntaxError("error parsing template: nested too deeply") from None
        self._allow_missing = allow_missing_keys

    def render(self, obj: Object) -> str:
        """Return the text for this object.

        Raises:
            TemplateError: a key is missing and that is not allowed, or a value has the wrong type.
        """
        return self.render_value(obj.to_dict())

    def render_value(self, value: Any) -> str:
        """Return the text for a decoded JSON value; raises as `render`."""
        run = _Run(self._tree.defined, self._allow_missing, value)
        try:
            run.write(self._tree.nodes, value)
        except RecursionError:
            raise TemplateLimitError("nested too deeply") from None
        return "".join(run.output)


class _Break(Exception):  # noqa: N818 - for control flow, not an error
    """Ends a range."""


class _Continue(Exception):  # noqa: N818 - for control flow, not an error
    """Continues with a range's next element."""


class _Assigned(NamedTuple):
    name: str
    value: Any


class _Run:
    """One rendering: the output so far, and the variables in scope, innermost last."""

    def __init__(
        self,
        defined: Mapping[str, Sequence[Node]],
        allow_missing: bool,  # noqa: FBT001 - one flag, private
        root: Any,
    ) -> None:
        self.output: list[str] = []
        self._defined = defined
        self._allow_missing = allow_missing
        self._variables = [_Assigned("$", root)]
        self._effort = Effort()

    def write(self, nodes: Sequence[Node], dot: Any) -> None:
        for node in nodes:
            self._effort.spend()
            if isinstance(node, Text):
                self._output(node.text)
            elif isinstance(node, Branch):
                scope = len(self._variables)
                try:
                    self._branch(node, dot)
                finally:
                    del self._variables[scope:]
            elif isinstance(node, Jump):
                raise _Break if node.word == "break" else _Continue
            elif isinstance(node, Include):
                self._include(node, dot)
            else:
                value = self._pipeline(node.pipeline, dot)
                if not node.pipeline.variables:
                    self._output(value_text(value, nil=_NO_VALUE))

    def _include(self, node: Include, dot: Any) -> None:
        body = self._defined.get(node.name)
        if body is None:
            raise TemplateError(f'template "{node.name}" not defined')
        value = None if node.pipeline is None else self._pipeline(node.pipeline, dot)
        outside, self._variables = self._variables, [_Assigned("$", value)]
        try:
            self.write(body, value)
        finally:
            self._variables = outside

    def _output(self, text: str) -> None:
        self._effort.spend(letters=len(text))
        self.output.append(text)

    def _branch(self, node: Branch, dot: Any) -> None:
        if node.word == "range":
            self._range(node, dot)
            return
        value = self._pipeline(node.pipeline, dot)
        if truth(value):
            self.write(node.body, value if node.word == "with" else dot)
        else:
            self.write(node.otherwise, dot)

    def _range(self, node: Branch, dot: Any) -> None:
        pipeline = node.pipeline
        over = self._value(pipeline, dot)
        pairs: Iterable[tuple[Any, Any]]
        if isinstance(over, list):
            pairs = enumerate(over)
        elif isinstance(over, dict):
            pairs = sorted(over.items())
        elif over is None:
            pairs = ()
        else:
            raise TemplateError(f"range can't iterate over {value_text(over)}")
        scope = len(self._variables)
        empty = True
        for key, element in pairs:
            empty = False
            self._effort.spend()
            names = pipeline.variables
            values = (key, element) if len(names) == 2 else (element,)
            for name, value in zip(names, values, strict=False):
                self._assign(name, value, new=pipeline.declares)
            try:
                self.write(node.body, element)
            except _Continue:
                pass
            except _Break:
                break
            finally:
                del self._variables[scope:]
        if empty:
            self.write(node.otherwise, dot)

    def _assign(self, name: str, value: Any, *, new: bool) -> None:
        if new:
            self._variables.append(_Assigned(name, value))
            return
        place = self._place(name)
        self._variables[place] = _Assigned(name, value)

    def _place(self, name: str) -> int:
        return next(
            place
            for place in range(len(self._variables) - 1, -1, -1)
            if self._variables[place].name == name
        )

    def _pipeline(self, pipeline: Pipeline, dot: Any) -> Any:
        value = self._value(pipeline, dot)
        for name in pipeline.variables:
            self._assign(name, value, new=pipeline.declares)
        return value

    def _value(self, pipeline: Pipeline, dot: Any) -> Any:
        value = self._command(pipeline.commands[0], dot, ())
        for command in pipeline.commands[1:]:
            value = self._command(command, dot, (value,))
        return value

    def _command(self, command: Sequence[Term], dot: Any, piped: tuple[Any, ...]) -> Any:
        first, *rest = command
        if not isinstance(first, Function):
            if rest or piped:
                raise TemplateError(f"can't give argument to non-function {_shown(first)}")
            if first == Literal(None):
                raise TemplateError("nil is not a command")
            return self._term(first, dot)
        if first.name in {"and", "or"}:
            return self._first_that(first.name == "or", rest, dot, piped)
        arguments = (*(self._term(term, dot) for term in rest), *piped)
        letters = sum(len(value) for value in arguments if isinstance(value, str))
        self._effort.spend(letters=letters)
        return _call(first.name, FUNCTIONS[first.name], arguments)

    def _first_that(
        self,
        wanted: bool,  # noqa: FBT001 - private
        terms: Sequence[Term],
        dot: Any,
        piped: tuple[Any, ...],
    ) -> Any:
        if not terms and not piped:
            raise TemplateError("wrong number of args for and, or: 0")
        value: Any = None
        for term in terms:
            value = self._term(term, dot)
            if truth(value) is wanted:
                return value
        return piped[0] if piped else value

    def _term(self, term: Term, dot: Any) -> Any:
        if isinstance(term, Literal):
            return term.value
        if isinstance(term, Field):
            return self._look_up(dot, term.path)
        if isinstance(term, Variable):
            return self._look_up(self._variables[self._place(term.name)].value, term.path)
        if isinstance(term, Group):
            return self._look_up(self._pipeline(term.pipeline, dot), term.path)
        return _call(term.name, FUNCTIONS.get(term.name), ())

    def _look_up(self, value: Any, path: Sequence[str]) -> Any:
        for name in path:
            if isinstance(value, dict):
                if name not in value and not self._allow_missing:
                    raise TemplateError(f'map has no entry for key "{name}"')
                value = value.get(name)
            elif value is None:
                if not self._allow_missing:
                    raise TemplateError(f'nil data; no entry for key "{name}"')
            else:
                raise TemplateError(f"can't evaluate field {name} in type {type_name(value)}")
        return value


def _call(name: str, function: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> Any:
    wrong_number = TemplateError(f"wrong number of args for {name}: {len(arguments)}")
    if function is None:
        raise wrong_number
    try:
        return function(*arguments)
    except TemplateError as error:
        raise TemplateError(f"error calling {name}: {error}") from None
    except TypeError:
        raise wrong_number from None
    except (ValueError, OverflowError) as error:
        raise TemplateError(f"error calling {name}: {error}") from None


def _shown(term: Term) -> str:
    if isinstance(term, Field):
        return "." + ".".join(term.path)
    if isinstance(term, Variable):
        return ".".join((term.name, *term.path))
    return "(…)" if isinstance(term, Group) else str(term[0])
