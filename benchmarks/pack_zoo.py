"""Packs entries of the zoo into archives: python -m benchmarks.pack_zoo OUT [FOLDER].

FOLDER has the entries, as `add_to_zoo` makes them; without it, they are those that the history of
this repository contains. OUT gets one tar for each, which is always the same bytes for the same
entry. Their rows, sizes and digests are in the package, in `src/paceline/zoo/archives.json`:
`paceline zoo fetch` accepts nothing else. With --write, that file is written; otherwise an archive
with a different digest is an error.
"""

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from benchmarks.model_card import write_card
from paceline.experiment.fields import Json
from paceline.extras.zoo import ADVICE, ARCHIVES, PACKAGE, archive_of
from paceline.storage.files import read_json


def pack(entry: Path, out: Path) -> Json:
    """Write the archive of an entry into `out`, and return its row."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as packed:
        for file in sorted(path for path in entry.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(f"{entry.name}/{file.relative_to(entry)}")
            member.size, member.mode = file.stat().st_size, 0o644
            with file.open("rb") as opened:
                packed.addfile(member, opened)
    out.mkdir(parents=True, exist_ok=True)
    (out / archive_of(entry.name)).write_bytes(content.getvalue())
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    found = {"bytes": len(content.getvalue()), "archive_sha256": digest}
    return read_json(entry / "zoo.json", ADVICE) | found


def from_history(folder: Path) -> Path:
    """Write the entries as they were before they left the repository; return their folder."""
    root = Path(__file__).parents[1]
    git = ("git", "-C", str(root))
    command = (*git, "rev-list", "-1", "HEAD", "--", ":(glob)zoo/*/zoo.json")
    removed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    packed = subprocess.run((*git, "archive", f"{removed}^", "zoo"), capture_output=True)
    if not removed or packed.returncode:
        raise SystemExit("the zoo is not in this clone's history; give the FOLDER of its entries")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as entries:
        entries.extractall(folder, filter="data")
    for file in folder.glob("zoo/*/zoo.json"):
        write_card(file.parent)
    return folder / "zoo"


def pack_all(folder: Path, out: Path, write: bool) -> int:
    """Pack all entries in `folder`; return an exit code."""
    entries = sorted(file.parent for file in folder.glob("*/zoo.json"))
    rows = {entry.name: pack(entry, out) for entry in entries}
    index = PACKAGE / ARCHIVES
    if write:
        index.write_text(json.dumps(rows, indent=2) + "\n")
    known = read_json(index, ADVICE)
    right = [name for name, row in rows.items() if known.get(name) == row]
    print(f"{out} has {len(rows)} archives, {len(right)} with the digests of {index.name}")
    return int(len(right) < len(known))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pack_zoo")
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-zoo-") as temporary:
        folder = given.folder or from_history(Path(temporary))
        return pack_all(folder, given.out, given.write)


if __name__ == "__main__":
    sys.exit(main())
