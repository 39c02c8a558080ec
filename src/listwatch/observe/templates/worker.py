"""Jinja2 and jq in a separate process that ends when a template takes too much.

It ends itself, by a CPU timer and a memory limit, so it needs no supervision and does not outlive
this program. It clears its environment.
"""

import os
import resource
import signal
import sys
import weakref
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Final

import msgspec

from listwatch.objects import Object
from listwatch.observe.templates.extras import Jinja2Template, JqTemplate
from listwatch.observe.templates.template import (
    MOST_LETTERS,
    TemplateError,
    TemplateLimitError,
    TemplateSyntaxError,
)

#: CPU seconds for one rendering, and for parsing the template.
SECONDS: Final = 5.0
#: Bytes of memory that the process may use; this program's own limit applies too.
MEMORY: Final = 2**30
# Seconds for a worker whose pipe is closed to end by itself, and so reveal the reason.
_SECONDS_TO_END: Final = 1.0

_LANGUAGES: Final[dict[str, type[Jinja2Template | JqTemplate]]] = {
    "jinja2": Jinja2Template,
    "jq": JqTemplate,
}
# The type of a response, by its first byte.
_TEXT: Final = b"="
_SYNTAX_ERROR: Final = b"s"
_ERROR: Final = b"e"
_LIMIT: Final = b"l"

_ERRORS: Final[dict[bytes, type[TemplateError | TemplateSyntaxError]]] = {
    _SYNTAX_ERROR: TemplateSyntaxError,
    _ERROR: TemplateError,
    _LIMIT: TemplateLimitError,
}

_PROGRAM: Final = f"from {__name__} import main; main()"


class _Settings(msgspec.Struct, frozen=True):
    language: str
    text: str
    allow_missing_keys: bool
    seconds: float
    memory: int


class WorkerTemplate:
    """A template in a language without limits, rendered within some: a `Template`.

    The worker starts and ends with this object, and is restarted after it has ended. Rendering
    waits for the worker, so it blocks the event loop for as long as the template takes.

    Args:
        language: "jinja2" or "jq".
        text: the template.
        allow_missing_keys: see the language.

    Raises:
        TemplateSyntaxError: the text is not a template, takes too much to parse, or the language is
            not installed.
    """

    def __init__(self, language: str, text: str, *, allow_missing_keys: bool = True) -> None:
        if find_spec(language) is None:
            raise TemplateSyntaxError(
                f"--output={language} needs the package {language};"
                f" install it with: pip install 'listwatch[{language}]'"
            )
        self._settings = _Settings(language, text, allow_missing_keys, SECONDS, MEMORY)
        try:
            self._start()
        except TemplateLimitError as error:
            words = f"error parsing {language} template {text}: {error}"
            raise TemplateSyntaxError(words) from None

    def render(self, obj: Object) -> str:
        """Return the text for this object.

        Raises:
            TemplateError: the object lacks something that the template uses.
            TemplateLimitError: it takes too long, or too much memory.
        """
        if self._process.poll() is not None:  # in the last rendering, or killed since
            self._end()
            self._start()
        return self._ask(obj.json())

    def _start(self) -> None:
        self._worker, theirs = Pipe()
        with theirs:
            self._process = Popen(  # noqa: S603 - this package's own module
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        self._end = weakref.finalize(self, _end, self._process, self._worker)
        try:
            self._ask(msgspec.json.encode(self._settings))
        except BaseException:
            self._end()
            raise

    def _ask(self, message: bytes) -> str:
        try:
            self._worker.send_bytes(message)
            answer = self._worker.recv_bytes()
        except (EOFError, OSError):
            with suppress(TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
            self._end()
            code = self._process.returncode
            if code == -signal.SIGPROF:
                words = f"it takes longer than {self._settings.seconds:g} s"
            else:
                most = self._settings.memory >> 20
                words = f"its process, which may have {most} MiB of memory, ended with code {code}"
            raise TemplateLimitError(words) from None
        text = answer[1:].decode()
        if answer[:1] == _TEXT:
            return text
        raise _ERRORS[answer[:1]](text)


def _end(process: Popen[bytes], worker: Connection) -> None:
    worker.close()
    process.kill()
    process.wait()


def main() -> None:
    """Run as a worker: the first message has the settings, every other an object to render."""
    with Connection(int(sys.argv[1])) as requests, suppress(EOFError, OSError):
        settings = msgspec.json.decode(requests.recv_bytes(), type=_Settings)
        import_module(settings.language)  # not part of the template's time
        for name in os.environ.keys() - {"TZ"}:  # may be secret, and is not part of the object
            del os.environ[name]
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        memory = settings.memory if most == resource.RLIM_INFINITY else min(settings.memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        template: Jinja2Template | JqTemplate | None = None
        message = b""
        while True:
            signal.setitimer(signal.ITIMER_PROF, settings.seconds)
            kind, text = _TEXT, ""
            try:
                if template is None:
                    template = _LANGUAGES[settings.language](
                        settings.text, allow_missing_keys=settings.allow_missing_keys
                    )
                else:
                    text = template.render(message)
                if len(text) > MOST_LETTERS:
                    kind, text = _LIMIT, "it makes too long a text"
            except MemoryError:
                kind, text = _LIMIT, f"it takes more than {memory >> 20} MiB of memory"
            except TemplateSyntaxError as error:
                kind, text = _SYNTAX_ERROR, str(error)
            except TemplateError as error:
                kind, text = _ERROR, str(error)
            signal.setitimer(signal.ITIMER_PROF, 0)
            requests.send_bytes(kind + text.encode("utf-8", "backslashreplace"))
            message = requests.recv_bytes()
