"""Predict the images of a Spark DataFrame with the model of a run: `paceline.spark.predict`.

Run and package are shipped with the query: executors need neither the run folder nor Paceline, only
the packages that it needs. Nothing is computed before the result is used. The driver imports no
TensorFlow.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, FloatType, StringType, StructField, StructType

from paceline.errors import UserError
from paceline.places.spark.session import ship_package, shipping_folder
from paceline.results.in_worker import check_trust
from paceline.run_folder.finding import existing_run
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import explained

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

    from paceline.results.predict import Predictor

ADDED = (
    StructField("label", StringType()),
    StructField("probabilities", ArrayType(FloatType(), containsNull=False)),
    StructField("error", StringType()),
)


def predict(
    dataframe: DataFrame,
    run: str | Path,
    input: str = "content",
    checkpoint: str = "best",
    trust_code: bool = False,
) -> DataFrame:
    """Return the same rows with three more columns.

    `label` is the class with the highest probability; `probabilities` are those of all classes in
    the run's order. If the column `input` has no image, both are null, and `error` says why.
    `trust_code` allows code of your own that the run names.
    """
    types = dict(dataframe.dtypes)
    if types.get(input) != "binary":
        columns = ", ".join(f"{name} ({kind})" for name, kind in types.items())
        raise UserError(
            f"the column {input!r} must contain the bytes of image files (binary); the DataFrame "
            f"has {columns}"
        )
    if taken := [field.name for field in ADDED if field.name in types]:
        raise UserError(f"the DataFrame already has a column {taken[0]!r}; rename it first")
    try:
        context = dataframe.sparkSession.sparkContext
    except PySparkException as error:
        raise UserError(
            "Spark Connect cannot ship a model; "
            "use a classic session (spark-submit, or SparkSession.builder.master)"
        ) from error
    folder = existing_run(run)
    check_trust(folder, "predict", trust_code)
    archive = _write_run(folder, shipping_folder() / f"run-{uuid4().hex}.zip")
    ship_package(context)
    context.addArchive(str(archive))
    schema = StructType([*dataframe.schema.fields, *ADDED])
    return dataframe.mapInPandas(partial(_add_predictions, archive.name, input, checkpoint), schema)


def _write_run(run: RunFolder, file: Path) -> Path:
    """Write what a prediction needs of a run folder, uncompressed: weights hardly get smaller."""
    with explained("read", run.path), zipfile.ZipFile(file, "w") as archive:
        code = sorted((run.path / "code").rglob("*.py"))
        checkpoints = sorted(run.checkpoints.glob("step-*.safetensors"))
        for path in (run.path / "config.json", *code, *checkpoints):
            archive.write(path, path.relative_to(run.path))
    return file


def _add_predictions(
    archive: str, column: str, checkpoint: str, frames: Iterator[pd.DataFrame]
) -> Iterator[pd.DataFrame]:
    """Add the columns to one part of the rows, on an executor."""
    for frame in frames:
        predictor = _load(archive, checkpoint)
        images = [b"" if data is None else bytes(data) for data in frame[column]]
        probabilities, faults = predictor.try_predict(images)
        rows = [None if row in faults else each for row, each in enumerate(probabilities)]
        yield frame.assign(
            label=[None if row is None else predictor.classes[row.argmax()] for row in rows],
            probabilities=rows,
            error=[faults.get(row) for row in range(len(images))],
        )


@cache
def _load(archive: str, checkpoint: str) -> Predictor:
    """Load the model once per process: Spark gives one Python process several parts."""
    from paceline.results.predict import load_predictor

    return load_predictor(SparkFiles.get(archive), checkpoint, trust_code=True)
