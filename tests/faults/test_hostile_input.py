"""Whatever comes from outside is read right or refused with one line: mutated inputs.

The corpus and its readers are in `hostile_inputs.py` and `hostile_commands.py`. It runs in a
process of its own, with limits of memory and time. `test_tfrecord_fuzz.py` mutates records
and Examples further.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from helpers import SUPPORT

HERE = SUPPORT


def run_inputs(seed: int, count: int, *targets: str, timeout_s: float) -> int:
    command = [sys.executable, str(HERE / "hostile_inputs.py"), str(seed), str(count), *targets]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, cwd=HERE, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    found = re.search(r"^(\d+) inputs, 0 failures", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return int(found[1])


def test_some_hundred_mutated_inputs_are_read_right_or_refused() -> None:
    assert run_inputs(20, 40, timeout_s=100) >= 500


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_thousand_mutated_inputs_are_read_right_or_refused(part: int) -> None:
    """In four parts, so that several processes can share them."""
    assert run_inputs(16 + part, 1_750, timeout_s=1400) >= 25_000
