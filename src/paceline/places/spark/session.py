"""Spark for a command: the context that already runs, the one of spark-submit, or a new one.

It also ships this package to the executors. What Paceline uses of PySpark's private API is here
only. Imports no TensorFlow.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import Ended, UserError, WorkerFailed, first_line
from paceline.job import Spark
from paceline.kernels.library import find_library
from paceline.storage.files import run_file

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

LIGHT_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Java that starts quickly and stays small: it only passes work to Python."""
DEFAULTS = {
    "spark.app.name": "paceline",
    "spark.driver.defaultJavaOptions": LIGHT_JAVA,
    "spark.executor.defaultJavaOptions": LIGHT_JAVA,
    "spark.driver.memory": "512m",  # it only schedules
    "spark.dynamicAllocation.enabled": "false",  # a barrier stage cannot have it
    # how long executors may take to come, if the slots are too few; Spark's own is ten minutes
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "2s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "15",
    "spark.stage.maxConsecutiveAttempts": "1",  # `launch` starts it again from its checkpoint
    "spark.ui.enabled": "false",  # it would be open to the network
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of a session that is started here. Those of --spark.conf take precedence."""
FAILURES = (
    (r"paceline\.errors\.UserError: (.*)", "{}"),
    (
        r"(requires more slots)",
        "the stage {} than Spark has; use fewer --workers, or Spark more cores",
    ),
    (
        r"ModuleNotFoundError: N(o module named .*)",
        "the executors' Python has n{}; give it the same packages, see docs/spark.md",
    ),
)
"""What Spark reports, and what a person can do."""


@contextmanager
def spark_context(spark: Spark, log: Path) -> Iterator[SparkContext]:
    """Yield a context, and stop it afterwards if it was started here. The output of its Java
    process goes to `log`."""
    try:
        from pyspark import SparkContext
    except ImportError:
        raise UserError("PySpark is not installed; pip install 'paceline[spark]'") from None
    running = SparkContext._active_spark_context
    if running is not None and (spark.master or spark.conf):
        raise UserError(
            "Spark already runs in this process, so --spark.master and --spark.conf do nothing; "
            "leave them out"
        )
    context = running or _start(spark, log)
    from py4j.protocol import Py4JError

    try:
        ship_package(context)
        yield context
    except (Py4JError, ConnectionError) as error:
        raise Ended(
            f"Spark's Java process is gone ({first_line(error)}); the same command continues from "
            f"the last checkpoint; its log is {log}"
        ) from error
    finally:
        if running is None:
            with suppress(Py4JError, ConnectionError):
                context.stop()


def ship_package(context: SparkContext) -> None:
    """Give the executors the driver's own version of this package, even if they have one."""
    file = shipping_folder() / "paceline-of-the-driver.zip"  # a person may ship a paceline.zip
    context.addPyFile(str(file) if file.exists() else write_package(file))


@cache
def shipping_folder() -> Path:
    """Return a folder for files that executors fetch; it exists until this process ends."""
    folder = tempfile.mkdtemp(prefix="paceline-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _start(spark: Spark, log: Path) -> SparkContext:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    # it asks for an older pandas than it needs, in the middle of the progress bar
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # else pages about a process that is gone
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's own default is python3
    try:
        gateway = SparkContext._gateway
        if not gateway and not submitted:
            with open(log, "ab", opener=run_file) as output:
                both = {"stdout": output, "stderr": output}
                gateway = launch_gateway(_settings(spark, SparkConf()), both)
        return SparkContext(conf=_settings(spark, SparkConf()), gateway=gateway)
    except (Py4JError, PySparkException, OSError) as error:
        reason = getattr(error, "java_exception", None) or error
        where = "" if submitted else f"; Spark needs Java 17 or newer; see {log}"
        raise UserError(f"Spark did not start: {first_line(reason)}{where}") from error


def _settings(spark: Spark, conf: SparkConf) -> SparkConf:
    for setting in spark.conf:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise UserError(f"--spark.conf has {setting!r}; write it as spark.KEY=VALUE")
        conf.set(key, value)
    if spark.master:
        conf.setMaster(spark.master)
    for key, value in DEFAULTS.items():
        conf.setIfMissing(key, value)
    return conf


def explain_failure(error: Exception) -> UserError | WorkerFailed:
    """Return the one line of Spark's pages of traces that a person needs."""
    text = str(getattr(error, "java_exception", None) or error)
    for pattern, advice in FAILURES:
        if found := re.search(pattern, text):
            return UserError(advice.format(found[1]))
    own = r"^(?!org\.|java\.|py4j)[\w.]*(?:Error|Exception)\b.*$"
    lines = re.findall(own, text, re.MULTILINE) or text.strip().splitlines()
    return WorkerFailed("worker 0", (lines or [type(error).__name__])[0], None)


def write_package(file: Path) -> str:
    """Write this package as a zip file for --py-files; return its path."""
    package = Path(__file__).parents[2]
    # the hash of the kernels' sources names their library
    sources = sorted([*package.rglob("*.py"), *(package / "kernels" / "cc").glob("*")])
    files = {path: path.relative_to(package) for path in sources}
    if library := find_library():
        files[library] = Path("kernels", "lib", library.name)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, name in files.items():
            archive.write(path, Path("paceline", name))
        with suppress(PackageNotFoundError):  # a run notes the versions of its libraries
            own = distribution("paceline")
            metadata = own.read_text("METADATA") or ""
            archive.writestr(f"paceline-{own.version}.dist-info/METADATA", metadata)
    return str(file)
