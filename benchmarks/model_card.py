"""Writes the model cards of the zoo: python -m benchmarks.model_card FOLDER, with entries in it."""

import argparse
from pathlib import Path

from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import from_json
from paceline.extras.zoo import ADVICE, Row
from paceline.storage.files import read_json

CARD = "MODEL_CARD.md"
DATA = {
    "cifar10": """CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels in ten classes,
collected by Alex Krizhevsky, Vinod Nair and Geoffrey Hinton
(`https://www.cs.toronto.edu/~kriz/cifar.html`). The images come from the web, and their authors
publish no license for them. The images are not part of this entry. Check whether your use of a
model that was trained on them is permitted.""",
    "shapes": """Images of ten simple shapes, 32 x 32 pixels, which Paceline draws from a seed. No
photographs.""",
}
TEXT = """# {name}

{model}, trained with Paceline by this command:

```sh
{command}
```

- **Input:** an image of 32 x 32 pixels with 3 channels, scaled as `config.json` says.
  `paceline predict` and `paceline.load_predictor` prepare images themselves.
- **Output:** one of these classes: {classes}.
- **Accuracy:** {accuracy:.4f} on {test:,} test images, with the weights of step {step:,}, the last.
  This is one seed ({seed}).
- **Digest of the final state:** `{state_sha256}`,
  {arithmetic}.
- **License of the weights:** Apache-2.0, like Paceline.

## Training data

{data}

## Use and limits

The model shows and tests Paceline, and is a start for fine-tuning on small images. It knows ten
classes and always answers with one of them, even for an image of something else. It was not
examined for bias or for attacks. Do not use it where a wrong answer can harm somebody.
"""


def write_card(entry: Path) -> None:
    """Write the card of an entry from its files."""
    row = from_json(Row, read_json(entry / "zoo.json", ADVICE))
    config = read_json(entry / "config.json", ADVICE)
    experiment = Experiment.from_json(config["experiment"])
    model, known = experiment.model, experiment.data.source
    speedrun = model.layout == "speedrun"
    text = TEXT.format(
        name=row.name,
        model="A network after [airbench94](https://github.com/KellerJordan/cifar10-airbench)"
        if speedrun
        else f"A ResNet-{model.depth} ({model.version})",
        command=row.command,
        classes=", ".join(config["data"]["classes"]),
        accuracy=row.test_accuracy,
        test=config["data"]["test"],
        step=row.step,
        seed=experiment.seed,
        state_sha256=row.state_sha256,
        arithmetic=f"version {row.arithmetic} of the arithmetic"
        if row.arithmetic
        else "from an arithmetic before version 1: a repetition has a different digest",
        data=DATA[known],
    )
    (entry / CARD).write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_card")
    parser.add_argument("folder", type=Path)
    for file in sorted(parser.parse_args().folder.glob("*/zoo.json")):
        write_card(file.parent)


if __name__ == "__main__":
    main()
