"""Commands on Spark: a cluster that all tests share, flags, and a program that predicts.

Importing it skips a test module where there is no PySpark or no Java. Not a test itself.
"""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import helpers
from helpers import SUPPORT, TIMEOUT_S, once_per_session, wait_until

pytest.importorskip("pyspark", reason="PySpark is not installed")
if not (shutil.which("java") or "JAVA_HOME" in os.environ):
    pytest.skip("there is no Java", allow_module_level=True)

SPARK_TIMEOUT_S = 2 * TIMEOUT_S
"""Seven processes of Java and TensorFlow take their time to start on two busy cores."""
SMALL = (
    "spark.executor.memory=512m",
    "spark.ui.enabled=false",
    "spark.executorEnv.PACELINE_TEST_MARK={mark}",
)
TWO_SLOTS = ("spark.cores.max=2", "spark.executor.cores=1")
OWN_PYTHON = {"PYSPARK_PYTHON": sys.executable}
PREDICT = """
import json, os, sys
import pyarrow.parquet
from pyspark.sql import SparkSession
import paceline.spark

run, pictures, out = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
names = sorted(os.listdir(pictures))
contents = [open(f"{pictures}/{name}", "rb").read() for name in names]
numbers = [None if n % 5 == 0 else 2**60 + n for n in range(len(names))]
rows = list(zip(numbers, names, contents))
schema = "number bigint, name string, picture binary"
frame = spark.createDataFrame([*rows, (7, "null", None)], schema).repartition(8)
predicted = paceline.spark.predict(frame, run, input="picture")
columns = ("number", "name", "label", "probabilities", "error")
found = [row.asDict() for row in predicted.select(*columns).collect()]


def probe(frames):
    import pandas

    for frame in frames:
        used = paceline.extras.spark_predict._load.cache_info()
        counts = {"loaded": [used.misses], "used": [used.hits + used.misses]}
        yield pandas.DataFrame({"pid": [os.getpid()]} | counts)


probed = spark.range(64).repartition(16).mapInPandas(probe, "pid long, loaded long, used long")
probes = [row.asDict() for row in probed.collect()]
result = {"found": found, "probes": probes, "tensorflow": "tensorflow" in sys.modules}
json.dump(result, open(out, "w"))
spark.stop()
"""


@pytest.fixture(name="master", scope="session")
def spark_master(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a cluster that all processes of pytest-xdist share; it ends with pytest."""

    def make(folder: Path) -> None:
        pid = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        command = [sys.executable, str(SUPPORT / "spark_cluster.py"), str(folder), str(pid)]
        cluster = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda: (folder / "url").exists() or cluster.poll() is not None)

    return (once_per_session(tmp_path_factory, "spark-cluster", make) / "url").read_text()


def on_spark(master: str, *conf: str) -> tuple[str, ...]:
    return ("--on", "spark", "--spark.master", master, "--spark.conf", *SMALL, *conf)


train = partial(helpers.train_smoke, timeout_s=SPARK_TIMEOUT_S)
digest_of = partial(helpers.digest_of, timeout_s=SPARK_TIMEOUT_S)
