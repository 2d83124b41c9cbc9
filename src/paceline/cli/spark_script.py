"""The script for spark-submit: `spark-submit ... $(paceline spark-script) train RECIPE ...`.

It runs `paceline train RECIPE --on spark ...` with the Spark of spark-submit.
"""

import os
import sys

# spark-submit makes the script's folder importable; its files must not be imported by these names
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]

if __name__ == "__main__":
    from paceline.cli.commands import main

    arguments = sys.argv[1:]
    if arguments[:1] == ["train"] and "--on" not in arguments:
        arguments += ["--on", "spark"]
    sys.exit(main(arguments))
