"""Hostile and damaged pickles of CIFAR are refused, in little memory; nothing of them runs."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from paceline.formats.cifar_pickle import BadPickle, read_pickle

OBJECT_ARRAY = (
    b"\x80\x02cnumpy._core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85q\x02"
    b"C\x01bq\x03\x87q\x04Rq\x05(K\x01K\x01\x85q\x06cnumpy\ndtype\nq\x07X\x02\x00\x00\x00O8q\x08"
    b"\x89\x88\x87q\tRq\n(K\x03X\x01\x00\x00\x00|q\x0bNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tq\x0c"
    b"b\x89C\x08AAAAAAAAq\rtq\x0eb."
)
"""Raw bytes that NumPy takes for a pointer to an object: reading one ends the process."""


@pytest.mark.parametrize(
    "content",
    [
        OBJECT_ARRAY,
        OBJECT_ARRAY.replace(b"O8", b"u8").replace(b"K?tq", b"K?tq"),
        b"cbuiltins\nbytes\n(I1000000000000\ntR.",
        b"\x80\x02}r\xff\xff\xff\x7f.",
        b"\x80\x03\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"cnumpy\nndarray\n(I1000000000\nttR.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02})" + b"\x85" * 500_000 + b"Ns.",  # the hash of nested tuples ends the process
    ],
)
def test_a_hostile_pickle_is_refused_within_little_memory(content: bytes) -> None:
    code = (
        "import resource, sys; from paceline.formats.cifar_pickle import *\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "try: print(type(read_pickle(bytes.fromhex(sys.stdin.read()))).__name__)\n"
        "except BadPickle as error: print('refused', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=content.hex(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    # the fourth is an empty dictionary
    assert done.stdout.startswith("refused") or done.stdout == "dict\n"


def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused() -> None:
    content = pickle.dumps({b"data": np.zeros((2, 3), np.uint8)}, 2)
    assert read_pickle(content)[b"data"].shape == (2, 3)
    assert b"K\x02K\x03" in content
    with pytest.raises(BadPickle, match="shape"):
        read_pickle(content.replace(b"K\x02K\x03", b"K\x02K\x04"))
