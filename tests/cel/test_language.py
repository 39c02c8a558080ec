"""Cases without recordings: times, zones, versions, formats, and ignored errors."""

from __future__ import annotations

import pytest

from listwatch.cel import (
    CompilationError,
    Environment,
    EvaluationError,
    InstantiationError,
    compile_expression,
    object_types,
    schema_type,
    to_value,
)
from listwatch.cel.types import DYN, STRING, list_of

VARIABLES = Environment({"x": DYN, "s": STRING, "l": list_of(STRING)})


def evaluate(text: str, **variables: object) -> object:
    return compile_expression(text, VARIABLES).evaluate(variables)[0]


@pytest.mark.parametrize(
    "text",
    [
        "timestamp('2024-01-02T03:04:05.678Z').getHours('+02:00') == 5",
        "timestamp('2024-01-02T03:04:05.678Z').getMilliseconds() == 678",
        "timestamp('2024-01-07T00:00:00Z').getDayOfWeek() == 0",
        "timestamp('2024-12-31T00:00:00Z').getDayOfYear() == 365",
        "timestamp('2024-07-01T12:00:00Z').getHours('Europe/Berlin') == 14",
        "string(timestamp('2024-01-02T03:04:05.100Z')) == '2024-01-02T03:04:05.1Z'",
        "string(timestamp('0001-01-01T00:00:00Z')) == '0001-01-01T00:00:00Z'",
        "duration('-1h30m') == duration('-5400s')",
        "semver('1.2.3-rc.1').isLessThan(semver('1.2.3'))",
        "semver('1.2.3-rc.2').isLessThan(semver('1.2.3-rc.10'))",
        "semver('v01.2', true).minor() == 2 && !isSemver('1.2')",
        "semver('1.2.3+a') == semver('1.2.3+b')",
        "quantity('1.5Gi').isGreaterThan(quantity('1G'))",
        "quantity('-0.1').sign() == -1",
        "ip('2001:db8::1').family() == 6 && !isIP('1.2.3')",
        "ip.isCanonical('::1') && !ip.isCanonical('0:0:0:0:0:0:0:1')",
        "ip('127.0.0.1').isLoopback() && ip('8.8.8.8').isGlobalUnicast()",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
        "isURL('/only/path') && !isURL('relative')",
        "url('https://u@h:81/a b?x=1&x=2').getQuery()['x'] == ['1', '2']",
        "url('https://h/a b').getEscapedPath() == '/a%20b'",
        "format.dns1123Label().validate('Ab').hasValue()",
        "!format.qualifiedName().validate('a.b/c').hasValue()",
        "'%.3f|%d|%x|%s'.format([1.0, 7, 'a', [1]]) == '1.000|7|61|[1]'",
        "lists.range(3) == [0, 1, 2] && [3, 1, 2].sort() == [1, 2, 3]",
        "[1, 2, 3].slice(1, 3).reverse() == [3, 2] && [[1], [2]].flatten() == [1, 2]",
        "[3, 1].sortBy(i, -i) == [3, 1] && [1, 1, 2].distinct() == [1, 2]",
        "[1].first().value() == 1 && ![].last().hasValue()",
        "'abcabc'.findAll('b.') == ['bc', 'bc'] && 'abc'.find('x') == ''",
        "optional.of(1).optMap(v, v + 1).value() == 2",
        "strings.quote('a\"b') == '\"a\\\\\"b\"'",
        "1.0 == double(1) && 1u < 2 && 2.0 > 1u",
        "type(1) == int && type('') != int && type(type(1)) == type",
        "b'\\xff'.size() == 1 && size('日本') == 2",
        "{'a': 1}.transformMap(k, v, v + 1)['a'] == 2",
    ],
)
def test_true(text: str) -> None:
    assert evaluate(text) is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2][5] == 1", "index out of bounds: 5"),
        ("x.a == 1", "no such key: a"),
        ("x.all(i, i > 'a')", "no such overload"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s') > timestamp(0)", "overflow"),
        ("'a'.charAt(2) == ''", "index out of range: 2"),
        ("quantity(s).isInteger()", "quantities must match"),
        ("[].max() == 1", "max called on empty list"),
        ("optional.none().value() == 1", r"optional.none\(\) dereference"),
        ("{'a': 1}.transformMapEntry(k, v, {'b': v}).size() / 0 == 1", "division by zero"),
        ("timestamp(0).getHours('Nowhere/Land') == 1", "unknown time zone Nowhere/Land"),
        ("timestamp(0).getHours('../../etc/passwd') == 1", "unknown time zone"),
    ],
)
def test_a_failure_says_what_failed(text: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        evaluate(text, x={"b": 1} if "x.a ==" in text else [1], s="1Z", l=[])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 / 0 == 1 || true", True),
        ("true || 1 / 0 == 1", True),
        ("1 / 0 == 1 && false", False),
        ("[0, 1].exists(i, 1 / i == 1)", True),
        ("[0, 1].all(i, 1 / i == 2)", False),
    ],
)
def test_an_error_beside_a_value_that_decides_is_forgiven(text: str, value: bool) -> None:
    assert evaluate(text) is value


def test_an_error_that_nothing_decides_is_told() -> None:
    with pytest.raises(EvaluationError, match="division by zero"):
        evaluate("[0, 1].all(i, 1 / i == 1)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s.find('[') == ''", "program instantiation failed: error parsing regexp"),
        ("int('x') == 1", "type conversion error from 'string' to 'int'"),
    ],
)
def test_a_constant_that_always_fails_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InstantiationError, match=reason):
        compile_expression(text, VARIABLES)


def test_all_that_is_wrong_is_told_with_its_place() -> None:
    with pytest.raises(CompilationError) as caught:
        compile_expression("nothing.x == 1 ||\n size(1) > 'a'", VARIABLES)
    assert [(issue.line, issue.column) for issue in caught.value.issues] == [(1, 1), (2, 6)]


def test_a_variable_of_a_loop_hides_another_and_comes_back() -> None:
    assert evaluate("l.all(s, s == 'a') && s == 'b'", l=["a"], s="b") is True


def test_lists_that_are_sets_compare_and_add_without_order() -> None:
    kind = schema_type(
        {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}
    )
    assert kind is not None
    environment = Environment({"self": kind.type, "other": kind.type}, object_types(kind))
    values = {"self": to_value(["a", "b"], kind), "other": to_value(["b", "a"], kind)}
    program = compile_expression("self == other && (self + other).size() == 2", environment)
    assert program.evaluate(values)[0] is True


def test_a_value_that_has_not_its_format_is_an_error_when_it_is_read() -> None:
    schema = {"type": "object", "properties": {"t": {"type": "string", "format": "date-time"}}}
    kind = schema_type(schema)
    assert kind is not None
    environment = Environment({"self": kind.type}, object_types(kind))
    program = compile_expression("self.t > timestamp(0)", environment)
    with pytest.raises(EvaluationError, match="value is no date-time"):
        program.evaluate({"self": to_value({"t": "yesterday"}, kind)})
