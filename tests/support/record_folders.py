"""Folders of TFRecords with ImageNet's names and keys, and damage to them."""

from pathlib import Path

from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.record import find_offsets, framed

JPEG = b"\xff\xd8\xff"


def imagenet_example(shard: int, number: int, label: int) -> bytes:
    """Return a record with its own length and content."""
    image = JPEG + bytes([shard]) * (number + 1)
    return record.encode({"image/encoded": image, "image/class/label": label})


def write_imagenet(
    folder: Path,
    shards: int = 3,
    per_shard: int = 5,
    labels_file: bool = True,
    num_classes: int = 5,
) -> Path:
    """Write a folder whose labels count from 1; the label of record k of a shard is k + 1."""
    folder.mkdir(exist_ok=True)
    for split, count in (("train", shards), ("validation", 1)):
        for shard in range(count):
            records = [imagenet_example(shard, k, k % num_classes + 1) for k in range(per_shard)]
            content = b"".join(map(framed, records))
            (folder / f"{split}-{shard:05d}-of-{count:05d}").write_bytes(content)
    if labels_file:
        names = "".join(f"class {label}\n" for label in range(num_classes))
        (folder / "labels.txt").write_text(names)
    return folder


def offsets_of(file: Path) -> list[int]:
    with file.open("rb") as stream:
        return find_offsets(stream, str(file), file.stat().st_size).tolist()


def flip(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 0x10
    file.write_bytes(content)


def overwrite(file: Path, offset: int, record: bytes) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:offset] + record + content[offset + len(record) :])


def assert_one_line(error: object, *parts: object) -> None:
    """Check that an error is one line that contains all parts."""
    assert "\n" not in str(error)
    for part in parts:
        assert str(part) in str(error)
