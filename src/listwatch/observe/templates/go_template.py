"""Templates in Go's text/template language, as kubectl knows it (being written)."""

from listwatch.objects import Object
from listwatch.observe.templates.template import TemplateSyntaxError


class GoTemplate:
    def __init__(self, text: str, *, allow_missing_keys: bool = True) -> None:
        raise TemplateSyntaxError("go-template is not there yet")

    def render(self, obj: Object) -> str:
        raise NotImplementedError
