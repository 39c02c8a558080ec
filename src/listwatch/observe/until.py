"""When `observe` has seen enough: a condition that all observed objects must meet."""

from collections.abc import Callable, Sequence
from typing import Final

from listwatch.cel import (
    CompilationError,
    Environment,
    EvaluationError,
    InstantiationError,
    Program,
    Type,
    compile_expression,
)
from listwatch.client.waiting import accepts, conditions_of
from listwatch.errors import ListWatchError
from listwatch.objects import Object, ObjectDecodeError

_ENVIRONMENT: Final = Environment({"object": Type("dyn")})
# Names in the message of an unmet condition.
_SHOWN: Final = 3


class NotMetError(ListWatchError):
    """Observing ended before the condition held."""


class Until:
    """Which of the observed objects meet a condition. For one event loop.

    Args:
        expression: in CEL, with the variable `object`; empty for none. A field that is missing, or
            any other error of the evaluation, counts as false.
        conditions: condition types, such as `Ready` or `Available=False`; all must hold.

    Raises:
        ValueError: the expression does not compile, or is not a bool.
    """

    def __init__(self, expression: str = "", conditions: Sequence[str] = ()) -> None:
        self._wanted = [*([f"--until {expression!r}"] if expression else ())]
        self._wanted += [f"--for-condition {each}" for each in conditions]
        self._checks: list[Callable[[Object | None], bool]] = []
        if expression:
            self._checks.append(_Expression(_compiled(expression)))
        try:
            self._checks += [accepts(each) for each in conditions]
        except ValueError as error:
            raise ValueError(f"--for-condition: {error}") from error
        self._met: set[tuple[str, str]] = set()
        self._unmet: dict[tuple[str, str], Object] = {}

    def update(self, resource: str, key: str, obj: Object | None) -> None:
        """Record the state of an object; None if it is gone."""
        place = (resource, key)
        self._met.discard(place)
        self._unmet.pop(place, None)
        if obj is None:
            return
        if all(check(obj) for check in self._checks):
            self._met.add(place)
        else:
            self._unmet[place] = obj

    def is_met(self, names: Sequence[str] = ()) -> bool:
        """Return whether there is an object, and all of them meet the condition.

        Args:
            names: names of which an object each must be there.
        """
        there = {key.rpartition("/")[2] for _, key in self._met} if names else set()
        return bool(self._met) and not self._unmet and there.issuperset(names)

    def not_met(self) -> NotMetError:
        """Return the error of an end without the condition."""
        what = " and ".join(self._wanted)
        if not self._unmet:
            return NotMetError(f"{what} did not hold: no such object")
        shown = [
            f"{resource} {key} ({conditions_of(obj)})"
            for (resource, key), obj in list(self._unmet.items())[:_SHOWN]
        ]
        more = " …" if len(self._unmet) > _SHOWN else ""
        count = f"{len(self._unmet)} of {len(self._unmet) + len(self._met)} objects"
        return NotMetError(f"{what} did not hold for {count}: {', '.join(shown)}{more}")


class _Expression:
    def __init__(self, program: Program) -> None:
        self._program = program

    def __call__(self, obj: Object | None) -> bool:
        if obj is None:
            return False
        try:
            value, _ = self._program.evaluate({"object": obj.to_dict()})
        except (EvaluationError, ObjectDecodeError):
            return False
        return value is True


def _compiled(expression: str) -> Program:
    try:
        program = compile_expression(expression, _ENVIRONMENT)
    except (CompilationError, InstantiationError) as error:
        raise ValueError(f"--until: {error}") from error
    if program.type.kind not in {"bool", "dyn"}:
        raise ValueError(
            f"--until: {expression!r} is of type {program.type}; write a condition such as"
            " object.status.phase == 'Running'"
        )
    return program
