"""`python -m listwatch`: runs the command `listwatch`."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

#: Exit code after Ctrl-C ended the process before it could stop in order.
_INTERRUPTED = 130


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


def main() -> None:
    """Run the command line and exit. Ctrl-C prints one line, even while modules are loaded."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:  # otherwise a shell started this in the background, or it has its own handler
        signal.signal(signal.SIGINT, _interrupted)
    from listwatch.cli import run  # noqa: PLC0415 - slow to load

    code = _INTERRUPTED
    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
    finally:
        if ours:
            signal.signal(signal.SIGINT, _interrupted)
    sys.exit(code)


if __name__ == "__main__":
    main()
