"""Where the program begins, as `paceline` or `python -m paceline`."""

import _signal  # type: ignore[import-not-found]  # `signal` imports others first, for milliseconds
import os
import sys


def main() -> int:
    """Run the program. A Ctrl-C before a command begins its work ends it at once, with 130."""
    default, sigint = _signal.default_int_handler, _signal.SIGINT
    watches = _signal.getsignal(sigint) is default  # else a Ctrl-C is ignored, as with nohup
    if watches:  # without an exception: an import may print it, or continue
        _signal.signal(sigint, lambda *_: os._exit(130))
    from paceline.cli.commands import main as run

    return run(begin=lambda: watches and _signal.signal(sigint, default))


if __name__ == "__main__":
    sys.exit(main())
