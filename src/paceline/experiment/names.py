"""Settings by name: what `paceline.train(..., epochs=2)` changes, checked like flags.

It owns the names that people know from other tools, and the hint for a name that is not known.
"""

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json, flatten, from_json, to_json
from paceline.experiment.recipes.table import get_recipe

_SHORT = {
    "schedule.rate": "lr learning-rate",
    "global-batch-size": "batch-size",
    "run-dir": "out output-dir",
    "optimizer.weight-decay": "wd weight-decay",
    "optimizer.name": "optimizer",
    "data.dir": "data data-dir",
    "data.split": "split",
}
_OTHER = {
    "global-batch-size": "batch train-batch-size bs",
    "epochs": "num-epochs max-epochs train-epochs te",
    "steps": "train-steps max-step max-train-steps",
    "workers": "num-workers cluster-size",
    "ps": "num-ps",
    "data.source": "dataset",
    "data.dir": "train-data-path dd",
    "data.test": "eval-data-path",
    "data.validation": "val val-split",
    "data.image-size": "imgsz input-size",
    "run-dir": "output model-dir log-dir job-dir work-dir eval-dir clean md",
    "model.depth": "resnet-size num-layers use-trivial-model",
    "model.version": "resnet-version",
    "model.norm-momentum": "batch-norm-decay",
    "model.norm-epsilon": "batch-norm-epsilon",
    "model.init-from": "pretrained weights pretrained-model-checkpoint-path pretrained-filepath",
    "model.freeze": "fine-tune",
    "evaluate-every": "epochs-per-eval epochs-between-evals skip-eval ebe",
    "threads-per-replica": "num-intra-threads intra-op-parallelism-threads",
    "cores": "num-inter-threads inter-op-parallelism-threads datasets-num-private-threads",
    "precision": "amp fp16 bf16 mixed-precision dtype dt loss-scale ls",
    "sync.method": "sync",
    "augment.flip": "use-distortion-for-training",
    "ray.address": "redis-address",
    "actions": "hooks hk",
    "save-every": "save-checkpoints-secs save-checkpoints-steps",
    "keep": "keep-checkpoint-max",
    "profile": "profile-steps",
}
SHORT_NAMES = {name: ours for ours, names in _SHORT.items() for name in names.split()}
"""Names that may be given instead of ours."""
OTHER_NAMES = {name: ours for ours, names in _OTHER.items() for name in names.split()}
"""Names that other tools give to something similar; an error names ours."""
_HINTS = {
    "pass --model.depth N for a ResNet, or --model.build keras:ResNet50 or FILE.py:NAME": "model",
    "more --replicas than devices are computed in turns, which accumulates gradients": (
        "accumulate-grad-batches gradient-accumulation-steps grad-accum"
    ),
    "pass --gpus N, the number of GPUs of all workers together": "gpu num-gpus ng",
    "the same command continues an unfinished run": "resume resume-from resume-from-checkpoint",
    "--gpus, --workers, --ps or TF_CONFIG say where it runs": "ds distribution-strategy",
    "give addresses, role and number in TF_CONFIG (docs/clusters.md)": (
        "worker-hosts task-index run-experiment eval-node master-node driver-ps-nodes"
    ),
    "--ps decides where the weights are stored": "is-cpu-ps variable-strategy",
    "all test images count, in batches of a fixed size": "eval-batch-size eval-batch-count",
    "Paceline decides this itself": (
        "data-format df force-gpu-compatible tf-gpu-thread-mode gt-mode per-gpu-thread-count pgtc "
        "fp16-implementation tf-data-experimental-slack force-v2-in-keras-compile enable-eager "
        "set-learning-phase-to-train explicit-gpu-placement report-accuracy-metrics use-tensor-lr "
        "data-delay-prefetch batchnorm-spatial-persistent enable-get-next-as-optional "
        "steps-per-loop use-tf-while-loop training-dataset-cache use-train-and-evaluate"
    ),
    "the devices are named at the start": "log-device-placement",
    "it has no counterpart": "run-eagerly all-reduce-alg num-packs enable-xla tpu pruning-method",
    "--optimizer.name is sgd or adamw": "enable-lars",
    "use paceline data convert": "input-dir",
    "pass --early-stopping.patience": "stop-threshold st",
    "use paceline export": "ed export-dir enable-checkpoint-and-export",
    "use paceline eval": "eval-only",
    "a run has TensorBoard's events: tensorboard --logdir RUN": "tensorboard enable-tensorboard",
    "the recipe shapes has generated images": "use-synthetic-data synth",
    "metrics.jsonl of the run has the speed of every block; --track mlflow or wandb sends it": (
        "log-steps benchmark-log-dir bld benchmark-logger-type benchmark-test-id bti gcp-project "
        "bigquery-data-set bigquery-run-table bigquery-run-status-table bigquery-metric-table"
    ),
}
HINTS = {name: hint for hint, names in _HINTS.items() for name in names.split()}
"""What to do instead of a flag that has no counterpart."""


def settings_of_gpus(given: object, on: str, workers: object) -> Json:
    """Return what `--gpus N` is short for: a replica on each GPU, or one replica on the CPU."""
    if not str(given).isdecimal():
        raise UserError("--gpus needs a number, such as --gpus 4: a replica on each of 4 GPUs")
    count = int(str(given))
    if on != "ray" or not count:
        return {"replicas": max(1, count), "devices": "gpu" if count else "cpu"}
    if str(workers or count) != str(count):
        raise UserError(f"gpus is {count}, and on Ray each worker has one; leave out --workers")
    return {"replicas": count, "devices": "gpu", "workers": count}


def nearest_name(name: str, known: Sequence[str]) -> str:
    """Return the known name that was probably meant; empty if none is near.

    Names have dashes and dots, like flags. The nearest is the one of another tool's name, or one
    with the same last part, a similar one, or one with the same last word.
    """
    last = re.split(r"[.-]", name)[-1]
    near = [
        (SHORT_NAMES | OTHER_NAMES).get(name, ""),
        *(each for each in known if each.endswith(f".{name}")),
        *difflib.get_close_matches(name, known, n=1),
        *(each for each in known if re.split(r"[.-]", each)[-1] == last),
    ]
    return next((each for each in near if each in known), "")


def apply_settings(settings: Json, *parts: Any) -> list[Any]:
    """Return dataclasses, such as Experiment, Place and Run, with settings changed by name.

    `optimizer=dict(weight_decay=1e-4)`, `optimizer__weight_decay=1e-4` and
    `**{"optimizer.weight-decay": 1e-4}` are the same. All are checked like flags.
    """
    changed, settings = [to_json(part) for part in parts], {**settings}
    if "gpus" in settings:
        on = settings.get("on") or next((each["on"] for each in changed if "on" in each), "")
        settings = settings_of_gpus(settings.pop("gpus"), on, settings.get("workers")) | settings
    for given, value in flatten(_plain(settings)).items():
        name = given.replace("__", ".").replace("-", "_")
        if not any(name in flatten(each) for each in changed):
            name = SHORT_NAMES.get(name.replace("_", "-"), name).replace("-", "_")
        owner = next((each for each in changed if name in flatten(each)), None)
        if owner is None:
            raise unknown_setting(name, [known for each in changed for known in flatten(each)])
        *sections, last = name.split(".")
        for section in sections:
            owner = owner[section]
        owner[last] = value
    return [from_json(type(part), each) for part, each in zip(parts, changed, strict=True)]


def from_recipe(base: Experiment | str, settings: Json, *parts: Any) -> list[Any]:
    """Return an experiment or a recipe, and parts such as Place, with settings changed by name."""
    start = get_recipe(base) if isinstance(base, str) else base
    changed = apply_settings(settings, start, *parts)
    if isinstance(base, str) and start != (start := get_recipe(base, changed[0].data.dir)):
        changed = apply_settings(settings, start, *parts)
    return changed


def unknown_setting(name: str, known: Sequence[str]) -> UserError:
    """Return the error for a setting that is not known."""
    flag, everything = name.replace("_", "-"), "help(paceline.train) lists all"
    near = nearest_name(flag, [each.replace("_", "-") for each in known])
    hint = f"did you mean {near.replace('-', '_')!r}?" if near else HINTS.get(flag, everything)
    if any(each.startswith(f"{name}.") for each in known):
        hint = f"it has several settings: give a dict, such as {name}=dict(...)"
    return UserError(f"unknown setting {name!r}; {hint}")


def _plain(value: Any) -> Any:
    """Return dataclasses, NumPy's numbers and arrays, and paths, as JSON has them."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value) if hasattr(value, "__fspath__") else to_json(value)


def changed_flags(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Return what differs between two dataclasses, as words of a command line."""
    words: list[str] = []
    for item in dataclasses.fields(new):
        before, after = getattr(old, item.name), getattr(new, item.name)
        name = prefix + item.name.replace("_", "-")
        if dataclasses.is_dataclass(after):
            words += changed_flags(before, after, f"{name}.")
        elif isinstance(after, bool) and before != after:
            words.append(f"--{name}" if after else f"--{prefix}no-{name.removeprefix(prefix)}")
        elif before != after:
            words += [f"--{name}", *map(str, after if isinstance(after, tuple) else (after,))]
    return words
