import pytest
from hypothesis import given
from hypothesis import strategies as st

from listwatch.selector import (
    EVERY_FIELD,
    EVERYTHING,
    FieldRequirement,
    LabelSelector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)

WEB = {"app": "web", "tier": "front", "rev": "7"}
PLAIN: dict[str, str] = {}


@pytest.mark.parametrize(
    ("text", "canonical", "web", "plain"),
    [
        ("", "", True, True),
        ("app=web", "app=web", True, False),
        ("app==web", "app==web", True, False),
        ("app!=web", "app!=web", False, True),
        ("app in (web,db)", "app in (db,web)", True, False),
        ("app notin (web)", "app notin (web)", False, True),
        ("tier", "tier", True, False),
        ("!tier", "!tier", False, True),
        ("tier,app=web", "app=web,tier", True, False),
        (" app = web , tier in (front, back) ", "app=web,tier in (back,front)", True, False),
        ("rev>6", "rev>6", True, False),
        ("rev<7", "rev<7", False, False),
        ("app=", "app=", False, False),
        ("app in ()", "app in ()", False, False),
        ("in=notin,notin", "in=notin,notin", False, False),
        ("app in (,web)", "app in (,web)", True, False),
        ("a.example/app!=x", "a.example/app!=x", True, True),
    ],
)
def test_a_label_selector_is_read_printed_and_matched(
    text: str, canonical: str, *, web: bool, plain: bool
) -> None:
    selector = parse_label_selector(text)
    assert str(selector) == canonical
    assert parse_label_selector(canonical) == selector
    assert (selector.matches(WEB), selector.matches(PLAIN)) == (web, plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("app=web=x", "found '=', expected: ',' or 'end of string'"),
        ("app in web", "unable to parse requirement: found 'web' expected: '('"),
        ("(", "found '(', expected: !, identifier, or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        (
            "a b",
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
        ),
        ("app=bad value!", "found 'value', expected: ',' or 'end of string'"),
        (
            "rev>x",
            (
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' "
                "operators, the value must be an integer"
            ),
        ),
        ("app in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a,,b", "found ',', expected: identifier after ','"),
        ("a=(", "unable to parse requirement: found '(', expected: identifier"),
        ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
    ],
)
def test_a_wrong_label_selector_is_refused_in_the_servers_words(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as refused:
        parse_label_selector(text)
    assert str(refused.value) == message


@pytest.mark.parametrize("text", ["-x=1", "a/b/c", "/x", "a=" + "v" * 64, "k" * 64, "a=_"])
def test_a_key_or_value_that_no_label_can_have_is_refused(text: str) -> None:
    with pytest.raises(SelectorError, match="Invalid value"):
        parse_label_selector(text)


def test_a_selector_of_an_object_is_read_from_its_fields() -> None:
    selector = LabelSelector.from_dict(
        {
            "matchLabels": {"tier": "front"},
            "matchExpressions": [
                {"key": "app", "operator": "In", "values": ["web", "db"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        }
    )
    assert str(selector) == "app in (db,web),!old,tier=front"
    assert selector.matches(WEB)
    assert LabelSelector.from_dict({}) == EVERYTHING
    assert not LabelSelector.from_dict(None).matches(PLAIN)
    with pytest.raises(SelectorError, match='"Near" is not a valid label selector operator'):
        LabelSelector.from_dict({"matchExpressions": [{"key": "a", "operator": "Near"}]})


def test_a_field_selector_is_read_and_matched() -> None:
    selector = parse_field_selector(r"metadata.name=a\,b\=c\\,status.phase!=Running,x==,")
    assert selector.requirements == (
        FieldRequirement("metadata.name", "a,b=c\\"),
        FieldRequirement("status.phase", "Running", negated=True),
        FieldRequirement("x", ""),
    )
    assert selector.matches({"metadata.name": "a,b=c\\"}.get)
    assert not selector.matches({"metadata.name": "a,b=c\\", "status.phase": "Running"}.get)
    assert parse_field_selector(str(selector)) == selector
    assert parse_field_selector("") is EVERY_FIELD


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=b,nope", "invalid selector: 'a=b,nope'; can't understand 'nope'"),
        (r"a=\x", "invalid field selector: invalid escape sequence: \\x"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ("a=\\", "invalid field selector: invalid escape sequence: \\"),
    ],
)
def test_a_wrong_field_selector_is_refused(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as refused:
        parse_field_selector(text)
    assert str(refused.value) == message


@given(st.text(alphabet="ab1.-/_=!(), \\<>in\n", max_size=20))
def test_any_text_is_a_selector_with_a_stable_canonical_form_or_refused(text: str) -> None:
    for parse in (parse_label_selector, parse_field_selector):
        try:
            selector = parse(text)
        except SelectorError:
            continue
        assert parse(str(selector)) == selector
