"""Runs tests with kernels that contain a mistake, one after the other. Not a test itself:

    python tests/support/mutants.py FOLDER TEST_FILE...

prints how many tests failed with each. All mistakes are compiled into one library in FOLDER; the
environment variable PACELINE_MUTANT chooses one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.kernels import build, ops

CHOICE = """
#ifndef PACELINE_MUTANT
#define PACELINE_MUTANT
#include <cstdlib>
#include <cstring>
inline bool mutant(const char* name) {
  const char* chosen = std::getenv("PACELINE_MUTANT");
  return chosen && !std::strcmp(chosen, name);
}
#endif
"""
MUTANTS = {
    "sum": (
        "arithmetic.cc",
        "for (size_t k = 1; k < lanes; k++) sums[0] += sums[k];",
        "for (size_t k = 1; k < lanes; k++) sums[0] += sums[mutant(NAME) ? lanes - k : k];",
    ),
    "root": (
        "batch_norm.cc",
        "scale[i] = static_cast<float>(1 / std::sqrt(v + epsilon));",
        "scale[i] = mutant(NAME) ? _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(v + epsilon)))"
        " : static_cast<float>(1 / std::sqrt(v + epsilon));",
    ),
    "chunk": (
        "batch_norm.cc",
        "constexpr size_t CHUNK = 256;",
        "static const size_t CHUNK = mutant(NAME) ? 128 : 256;",
    ),
    "zero": (
        "tensors.h",
        "_mm_setcsr(before_ & ~0x8040u);",
        "_mm_setcsr(mutant(NAME) ? before_ : before_ & ~0x8040u);",
    ),
}
"""By name: a file of the kernels, a text in it, and what replaces it."""


def mutated() -> dict[str, bytes]:
    sources = build.read_sources()
    for name, (file, text, other) in MUTANTS.items():
        content = sources[file].decode()
        assert content.count(text) == 1, (file, text)
        sources[file] = content.replace(text, other.replace("NAME", f'"{name}"')).encode()
    for file in {file for file, _, _ in MUTANTS.values()}:
        sources[file] = CHOICE.encode() + sources[file]
    return sources


def main(folder: Path, tests: list[str]) -> None:
    sources = mutated()
    build.read_sources = lambda: sources
    library = folder / "mutants.so"
    library.write_bytes(build._compile(build.find_compiler()))
    failed = {}
    for name in ("none", *MUTANTS):
        environment = os.environ | {"PACELINE_MUTANT": name, "PACELINE_LIBRARY": str(library)}
        command = [sys.executable, __file__, *tests]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ended.returncode in (0, 1), ended.stdout + ended.stderr
        found = re.search(r"(\d+) failed", ended.stdout)
        failed[name] = int(found[1]) if found else 0
    print(json.dumps(failed), flush=True)


if __name__ == "__main__":
    if library := os.environ.get("PACELINE_LIBRARY"):
        ops.find_library = lambda: Path(library)
        options = ["-n", "0", "-p", "no:cacheprovider", "--tb=no", "-m", "not long"]
        sys.exit(pytest.main([*options, "--verbosity=0", *sys.argv[1:]]))
    main(Path(sys.argv[1]), sys.argv[2:])
