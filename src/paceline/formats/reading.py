"""Reads a batch of files in TensorFlow ops, and explains why an example could not be read.

A compiled step can only fail with a text. `read_batch` puts the names of the batch's files into
that text, and `explain` opens these files again in Python to find the one that is wrong. This also
works on parameter servers, where another process runs the step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from paceline.errors import PassingFault, UserError
from paceline.formats.tfrecord.frames import BadRecord, read_record
from paceline.formats.tfrecord.keys import parse_example
from paceline.storage.files import explained

if TYPE_CHECKING:
    import tensorflow as tf

BETWEEN_NAMES, IN_NAME = "\x1f", "\x1e"
"""Separators in the text of an error."""
_UNREAD = re.compile(r"paceline cannot read (.*?) :end", re.DOTALL)
_WRONG = re.compile(r"paceline refuses (.*?) :end", re.DOTALL)
_UNDECODABLE = re.compile(
    r"Invalid JPEG data|Unknown image file format|Invalid PNG|jpeg::Uncompress failed|DecodeImage"
    "|DecodeBmp|DecodeWebP"
)


def read_batch(
    contents: tf.data.Dataset,
    names: tf.Tensor,
    parse: Callable[[tf.Tensor], Any] = lambda strings: strings,
) -> Any:
    """Return the strings of a data set, parsed together; if one is bad, fail with all `names`.

    A name is the path of a file, or `record_name`. The tensors of the result are [n].
    """
    import tensorflow as tf

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


def record_names(paths: tf.Tensor, offsets: tf.Tensor, keys: tuple[str, str]) -> tf.Tensor:
    """Return the names of TFRecords, strings [n], for `read_batch`."""
    import tensorflow as tf

    return tf.strings.join([paths, tf.strings.as_string(offsets), *keys], IN_NAME)


def refuse(texts: tf.Tensor, wrong: tf.Tensor) -> tf.Operation:
    """Fail with the first of `texts` [n] whose example is `wrong`, bool [n]."""
    import tensorflow as tf

    text = tf.strings.join(["paceline refuses ", tf.boolean_mask(texts, wrong)[:1], " :end"])
    return tf.debugging.Assert(~tf.reduce_any(wrong), [text])


def explain(error: BaseException) -> UserError | None:
    """Return one line for TensorFlow's error about an example; None for other errors."""
    message = str(error)
    if unread := _UNREAD.search(message):
        return _find_fault(_unescaped(unread[1]).split(BETWEEN_NAMES))
    if wrong := _WRONG.search(message):
        return UserError(_unescaped(wrong[1]))
    if _UNDECODABLE.search(message):
        return UserError("an image cannot be decoded; `paceline data check DIR` finds its file")
    return None


def _unescaped(text: str) -> str:
    """Return a text as it was before TensorFlow escaped it for its message."""
    return os.fsdecode(text.encode().decode("unicode_escape").encode("latin-1"))


def _find_fault(names: list[str]) -> UserError:
    for name in names:
        path, *record = name.split(IN_NAME)
        try:
            with explained("read", Path(path)), open(path, "rb") as file:
                file.read(1)
                if record:
                    _check_record(file, path, *record)
        except UserError as fault:
            return fault
    return PassingFault(
        f"one of {len(names)} files, such as {names[0].partition(IN_NAME)[0]}, could not be read, "
        "but can be now: the disk or the network failed. The same command resumes the run"
    )


def _check_record(file: IO[bytes], path: str, offset: str, image_key: str, label_key: str) -> None:
    data = read_record(file, path, int(offset), os.fstat(file.fileno()).st_size)
    try:
        parse_example(data, image_key, label_key)
    except ValueError as error:
        raise BadRecord(path, int(offset), str(error)) from None
