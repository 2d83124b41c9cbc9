"""Play histories: `python -m tests.simulation --minutes 10`, or one again with `--seed 123`."""

import argparse
import sys
import time

from .history import play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="play this history alone, and print it")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    if options.seed is not None:
        played = play(options.seed)
        print(*played.lines, sep="\n")
        print(f"VIOLATION: {played.violation}" if played.violation else "every invariant holds")
        return bool(played.violation)
    began, cpu, seed, failed = time.monotonic(), time.process_time(), options.first, list[int]()
    while time.monotonic() - began < 60 * options.minutes and len(failed) < 10:
        played = play(seed)
        if played.violation:
            failed.append(seed)
            print(f"seed {seed}: {played.violation}", flush=True)
        seed += 1
    number, minutes = seed - options.first, (time.process_time() - cpu) / 60
    rate = f"{number / minutes:,.0f} a minute of one core"
    print(f"{number:,} histories, {rate}; failed: {failed or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
