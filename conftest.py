"""What holds for every test."""

import signal

# A shell starts its background jobs with SIGINT ignored, and so would every program that a test
# starts and interrupts. A handler of ours is not inherited: those programs get the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
