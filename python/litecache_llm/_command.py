"""The command `litecache`."""
from __future__ import annotations

import ctypes
import os
import signal
import sys

from . import _library


def main() -> int:
    """Runs the program with the arguments of this process; returns its exit status."""
    # The program handles signals itself; Python's handlers would only note them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = [b"litecache", *map(os.fsencode, sys.argv[1:])]
    return int(_library.function("main")(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments)))
