"""For spark-submit: `spark-submit --master ... $(paceline spark-script) train RECIPE ...` is `paceline train RECIPE --on spark ...` with
the Spark that spark-submit set up; `data convert` likewise."""

import os
import sys

# spark-submit makes the folder of a script importable, and the names of the files in this one are not meant for that
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]

if __name__ == "__main__":
    from paceline.cli.commands import main

    arguments = sys.argv[1:]
    runs_on_spark = arguments[:1] == ["train"] or arguments[:2] == ["data", "convert"]
    sys.exit(
        main(
            [*arguments, *(["--on", "spark"] if runs_on_spark and "--on" not in arguments else [])]
        )
    )
