"""Reads a batch of files in TensorFlow ops, and explains why an example could not be read.

A compiled step can only fail with a text. `read_batch` puts the names of the batch's files into
that text, and `explain` opens these files again in Python to find the one that is wrong. This also
works on parameter servers, where another process runs the step.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.tfrecord.record import BadRecord, check_example, read_record
from paceline.storage.files import explained

if TYPE_CHECKING:
    import tensorflow as tf

PARALLEL_READS = 16
"""Servers of network file systems answer several questions at a time. On 2 cores and cached files,
13,000 records/s of 100 kB are read; 6,800 with 2, and 5,900 one by one."""
BETWEEN_NAMES, IN_NAME = "\x1f", "\x1e"
"""Separators in the text of an error."""
_UNREAD = re.compile(r"paceline cannot read (.*?) :end", re.DOTALL)
_UNDECODABLE = re.compile(
    r"Invalid JPEG data|Unknown image file format|Invalid PNG|jpeg::Uncompress failed|DecodeImage"
    "|DecodeBmp|DecodeWebP"
)


def read_batch(
    read_one: Callable[..., tf.Tensor],
    places: tf.Tensor | tuple[tf.Tensor, ...],
    names: tf.Tensor,
    parse: Callable[[tf.Tensor], Any] = lambda strings: strings,
) -> Any:
    """Read the string at each place, and parse all together; if one is bad, fail with all `names`.

    A name is a path, or one of `record_names` or `range_names`. The result's tensors are [n, ...].
    """
    import tensorflow as tf

    contents = tf.data.Dataset.from_tensor_slices(places)
    contents = contents.map(read_one, num_parallel_calls=PARALLEL_READS, deterministic=True)
    count = names.shape[0] if names.shape[0] is not None else tf.size(names, tf.int64)
    # drop_remainder: after an error, the other strings would come as a smaller batch
    batch = contents.batch(count, drop_remainder=True).map(parse)
    read = tf.data.Dataset.zip((batch.ignore_errors(), tf.data.Dataset.from_tensors(True)))
    unread = tf.nest.map_structure(lambda spec: tf.zeros([count], spec.dtype), batch.element_spec)
    read = read.concatenate(tf.data.Dataset.from_tensors((unread, False)))
    found, is_read = read.take(1).get_single_element()
    joined = tf.strings.reduce_join(names, separator=BETWEEN_NAMES)
    message = tf.strings.join(["paceline cannot read ", joined, " :end"])
    with tf.control_dependencies([tf.debugging.Assert(is_read, [message])]):
        return tf.nest.map_structure(tf.identity, found)


def record_names(
    paths: tf.Tensor, offsets: tf.Tensor, keys: Records, num_classes: int
) -> tf.Tensor:
    """Return the names of TFRecords, strings [n], for `read_batch`, with what a good one needs."""
    import tensorflow as tf

    needs = json.dumps({"keys": asdict(keys), "num_classes": num_classes})
    return tf.strings.join([paths, tf.strings.as_string(offsets), needs], IN_NAME)


def range_names(paths: tf.Tensor, offsets: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Return the names of parts of files of some sizes, strings [n], for `read_batch`."""
    import tensorflow as tf

    numbers = tf.strings.as_string(offsets), tf.strings.as_string(sizes)
    return tf.strings.join([paths, *numbers], IN_NAME)


def explain(
    error: BaseException, data: Data | None = None, records: Records | None = None
) -> UserError | None:
    """Return one line for TensorFlow's error about an example; None for other errors. For an image
    that cannot be decoded, the `data` are searched."""
    if unread := _UNREAD.search(str(error)):
        # as it was before TensorFlow escaped it for its message
        names = os.fsdecode(unread[1].encode().decode("unicode_escape").encode("latin-1"))
        return _find_fault(names.split(BETWEEN_NAMES))
    if _UNDECODABLE.search(str(error)):
        from paceline.formats.check import first_fault

        fault = first_fault(data, records or Records()) if data and data.dir else ""
        advice = "for a folder of images, --data.skip-bad leaves out such files, in a new run"
        advice = advice if fault else "`paceline data check DIR` finds its file"
        return UserError(f"{fault or 'an image cannot be decoded'}; {advice}")
    return None


def _find_fault(names: list[str]) -> UserError:
    for name in names:
        path, *record = name.split(IN_NAME)
        try:
            with explained("read", Path(path)), open(path, "rb") as file:
                file.read(1)
                if record:
                    offset, needs = int(record[0]), json.loads(record[1])
                    size = os.fstat(file.fileno()).st_size
                    if isinstance(needs, int) and needs != size:
                        raise ValueError(f"the file had {needs:,} bytes and now has {size:,}")
                    if isinstance(needs, int):
                        continue
                    data = read_record(file, path, offset, size)
                    check_example(data, Records(**needs["keys"]), needs["num_classes"])
        except ValueError as fault:
            return BadRecord(path, offset, str(fault))
        except UserError as fault:
            return fault
    return PassingFault(
        f"one of {len(names)} files, such as {names[0].partition(IN_NAME)[0]}, could not be read, "
        "but can be now: the disk or the network failed. The same command resumes the run"
    )
