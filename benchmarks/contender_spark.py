"""`paceline.spark.predict` of 20,000 CIFAR images on two cores, or `paceline eval`.

    python -m benchmarks.contender_spark predict|eval RUN DATA_FOLDER

A step is all images. `predict` has loaded the model in an earlier turn. `eval` runs in one process
and is timed from its first batch.
"""

import io
import os
import sys
import time

from benchmarks import processes
from benchmarks.images import load_training_images
from benchmarks.protocol import Channel, cpu_seconds

PICTURES = 20_000


def serve_predict(run: str, folder: str) -> None:
    from PIL import Image
    from pyspark.sql import SparkSession

    from paceline.extras.spark_predict import predict

    os.environ["PYSPARK_PYTHON"] = sys.executable
    pictures = []
    for pixels in load_training_images(folder)[0][:PICTURES]:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        pictures.append((file.getvalue(),))
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()
    # in Spark's own memory, and no part of each query
    frame = spark.createDataFrame(
        spark.sparkContext.parallelize(pictures, 2), "content binary"
    ).localCheckpoint()
    predicted = predict(frame, run)
    channel, mark = Channel(), processes.own_mark()
    while (steps := channel.next_turn()) is not None:
        began, began_cpu_s = time.perf_counter(), processes.cpu_s(mark)
        for _ in range(steps):
            predicted.write.format("noop").mode("overwrite").save()
        channel.report(
            steps * PICTURES, time.perf_counter() - began, processes.cpu_s(mark) - began_cpu_s
        )


def serve_eval(run: str, folder: str) -> None:
    from paceline.messages import Message, Progress
    from paceline.requests import EvaluateRequest
    from paceline.results.evaluate import evaluate_run
    from paceline.run_folder.folder import RunFolder

    channel = Channel()
    while (steps := channel.next_turn()) is not None:
        images, wall_s, cpu_s = 0, 0.0, 0.0
        for _ in range(steps):
            seen: list[tuple[int, float, float]] = []

            def note(message: Message, seen: list[tuple[int, float, float]] = seen) -> None:
                if isinstance(message, Progress):
                    seen.append((message.done, time.perf_counter(), cpu_seconds()))

            evaluate_run(RunFolder(run), EvaluateRequest(data_dir=folder), note)
            images += seen[-1][0] - seen[0][0]
            wall_s += seen[-1][1] - seen[0][1]
            cpu_s += seen[-1][2] - seen[0][2]
        channel.report(images, wall_s, cpu_s)


if __name__ == "__main__":
    {"predict": serve_predict, "eval": serve_eval}[sys.argv[1]](*sys.argv[2:])
