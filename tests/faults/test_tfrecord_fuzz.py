"""Mutated records and Examples: no crash, no hang, no silently wrong record.

`hostile_inputs.py` mutates shards and their index, too.
"""

import io
import random

import pytest

from mutations import KINDS, mutate
from paceline.errors import UserError
from paceline.experiment.experiment import Records
from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.index import ShardIndex
from paceline.formats.tfrecord.record import Shard, find_offsets, framed, parse_example

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

EXAMPLE_INPUTS, TENSORFLOW_INPUTS = 30_000, 1_500
KEYS = ("image/encoded", "image/class/label")
PAYLOADS = [
    record.encode({KEYS[0]: bytes([k]) * length, KEYS[1]: k})
    for k, length in enumerate((3, 40, 0, 700, 129, 12))
]


def test_a_mutated_example_is_decoded_as_tensorflow_decodes_it_or_refused():
    import tensorflow as tf

    features = {
        KEYS[0]: tf.io.FixedLenFeature([], tf.string),
        KEYS[1]: tf.io.FixedLenFeature([], tf.int64),
    }
    parse = tf.function(lambda record: tf.io.parse_single_example(record, features))
    chance, compared = random.Random(3), 0
    for number in range(EXAMPLE_INPUTS):
        content = mutate(chance.choice(PAYLOADS), chance)
        try:
            ours = dict(zip(KEYS, parse_example(content, *KEYS), strict=True))
        except ValueError:
            continue
        if number % 5:
            continue
        try:
            theirs = parse(tf.constant(content))
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            continue  # TensorFlow refuses it too; its message may have the bytes of the record
        compared += 1
        assert {key: value.numpy() for key, value in theirs.items()} == ours
    assert compared > EXAMPLE_INPUTS // 100


def test_tensorflow_reads_what_was_written_or_the_fault_is_named(tmp_path):
    import tensorflow as tf

    from paceline.formats.reading import explain
    from paceline.formats.tfrecord.tfrecord_source import _split

    file, chance = tmp_path / "train-00000-of-00001", random.Random(6)
    whole = b"".join(map(framed, PAYLOADS))
    file.write_bytes(whole)
    offsets = find_offsets(io.BytesIO(whole), "fuzz", len(whole))
    part = ShardIndex(Shard(str(file), len(whole), "1"), offsets)
    read = tf.function(_split([part], Records(*KEYS, 0), len(PAYLOADS)).read)
    written = [record.decode(payload)[KEYS[0]][0] for payload in PAYLOADS]
    failures = 0
    for _ in range(TENSORFLOW_INPUTS):
        file.write_bytes(mutate(whole, chance, KINDS))
        chosen = [chance.randrange(len(PAYLOADS)) for _ in range(2)]
        try:
            images, labels = read(tf.constant(chosen, tf.int64))
        except tf.errors.InvalidArgumentError as error:
            failures += 1
            found = explain(error)
            assert isinstance(found, UserError)
            assert str(file) in str(found)
            assert "\n" not in str(found)
            continue
        assert labels.numpy().tolist() == chosen
        assert images.numpy().tolist() == [written[number] for number in chosen]
    assert TENSORFLOW_INPUTS // 10 < failures < TENSORFLOW_INPUTS
