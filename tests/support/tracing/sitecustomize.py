"""Notes which files of Paceline a process imports, and in which of them a function runs.

Python imports this module first if its folder is on PYTHONPATH. `sizes.py` uses it.
"""

import atexit
import os
import sys
import threading

FOLDER, PACKAGE = os.environ["PACELINE_TRACE"], os.environ["PACELINE_TRACED"]
ran: set[str] = set()


def note(frame, event, argument):
    """Look at each call of Python code; what the function does then is not traced."""
    code = frame.f_code
    if code.co_filename.startswith(PACKAGE) and code.co_flags & 0x2:  # a function, not a module
        ran.add(code.co_filename)


def write() -> None:
    sys.settrace(None)
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    imported = {file for file in files if file.startswith(PACKAGE)}
    with open(f"{FOLDER}/{os.getpid()}", "w") as file:
        file.writelines(f"{'ran' if path in ran else 'imported'} {path}\n" for path in imported)


atexit.register(write)
threading.settrace(note)
sys.settrace(note)
