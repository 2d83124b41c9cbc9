"""Folders of a few CIFAR records, in both layouts."""

import pickle

import numpy as np

PER_FILE = 4


def records(seed, num_classes):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (PER_FILE, 3072), np.uint8), random.integers(
        0, num_classes, PER_FILE, np.uint8
    )


def cifar_parts(name):
    """Stem of each file, its pixels and its fine labels."""
    stems = (
        [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
        if name == "cifar10"
        else ["train", "test"]
    )
    return [
        (stem, *records(seed, 10 if name == "cifar10" else 100)) for seed, stem in enumerate(stems)
    ]


def write_binary(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    for stem, pixels, labels in cifar_parts(name):
        coarse = [labels[:, None] // 5] if name == "cifar100" else []
        np.concatenate([*coarse, labels[:, None], pixels], axis=1).tofile(folder / f"{stem}.bin")
    return folder


def write_pickles(folder, name, protocol=2):
    folder.mkdir(parents=True, exist_ok=True)
    key = b"labels" if name == "cifar10" else b"fine_labels"
    for stem, pixels, labels in cifar_parts(name):
        content = {
            b"batch_label": b"a batch",
            b"data": pixels,
            key: labels.tolist(),
            b"filenames": [b"a.png"] * PER_FILE,
        }
        (folder / stem).write_bytes(pickle.dumps(content, protocol))
    return folder
