"""Folders of a few CIFAR records, in both layouts."""

import pickle

import numpy as np


def cifar_parts(name, per_file=4):
    """Stem of each file, its pixels and its fine labels."""
    stems, classes = ["train", "test"], 100
    if name == "cifar10":
        stems, classes = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"], 10
    for seed, stem in enumerate(stems):
        random = np.random.default_rng(seed)
        pixels = random.integers(0, 256, (per_file, 3072), np.uint8)
        yield stem, pixels, random.integers(0, classes, per_file, np.uint8)


def write_binary(folder, name, per_file=4):
    folder.mkdir(parents=True, exist_ok=True)
    for stem, pixels, labels in cifar_parts(name, per_file):
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
            b"filenames": [b"a.png"] * len(labels),
        }
        (folder / stem).write_bytes(pickle.dumps(content, protocol))
    return folder
