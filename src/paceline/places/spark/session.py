"""Spark for a command: the context that already runs, the one of spark-submit, or a new one.

It also ships this package to the executors. `place` uses it for training, `jobs` for many small
jobs. What Paceline uses of PySpark's private API is here only. Imports no TensorFlow.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from paceline.errors import UserError
from paceline.job import Spark
from paceline.kernels.library import find_library
from paceline.places.supervise.failures import WorkerFailed

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

OLDEST_JAVA = 17
LIGHT_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Java that starts quickly and stays small: it only passes work to Python."""
DEFAULTS = {
    "spark.app.name": "paceline",
    "spark.driver.defaultJavaOptions": LIGHT_JAVA,
    "spark.executor.defaultJavaOptions": LIGHT_JAVA,
    "spark.driver.memory": "512m",  # it only schedules
    "spark.dynamicAllocation.enabled": "false",  # a barrier stage cannot have it
    # `slots` has counted before; Spark itself would wait for ten minutes
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "2s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
    "spark.stage.maxConsecutiveAttempts": "1",  # `launch` starts it again from its checkpoint
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of a session that is started here. Those of --spark.conf take precedence."""


@contextmanager
def spark_context(spark: Spark, log: Path) -> Iterator[SparkContext]:
    """Yield a context, and stop it afterwards if it was started here.

    The output of its Java process goes to `log`.
    """
    try:
        from pyspark import SparkContext
    except ImportError:
        raise UserError("PySpark is not installed; pip install 'paceline[spark]'") from None
    running = SparkContext._active_spark_context
    if running is not None and (spark.master or spark.conf):
        raise UserError(
            "Spark already runs in this process, so --spark.master and --spark.conf come too late; "
            "leave them out"
        )
    context = running or _start(spark, log)
    try:
        ship_package(context)
        yield context
    finally:
        if running is None:
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

    check_master(spark.master)
    # it asks for an older pandas than it needs, in the middle of the progress bar
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        check_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's own default is python3
    try:
        gateway = SparkContext._gateway
        if not gateway and not submitted:
            with open(log, "ab") as output:
                gateway = launch_gateway(
                    _settings(spark, SparkConf()), {"stdout": output, "stderr": output}
                )
        return SparkContext(conf=_settings(spark, SparkConf()), gateway=gateway)
    except (Py4JError, PySparkException, OSError) as error:
        reason = getattr(error, "java_exception", None) or error
        line = str(reason).strip().splitlines()[0]
        raise UserError(
            f"Spark did not start: {line}" + ("" if submitted else f"; see {log}")
        ) from error


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


def check_master(master: str) -> None:
    """Fail at once if no master listens; Spark itself tries for a minute."""
    if not master.startswith("spark://") or "," in master:
        return
    try:
        url = urlsplit(master)
        socket.create_connection((url.hostname or "", url.port or 7077), timeout=10.0).close()
    except (OSError, ValueError) as error:
        raise UserError(
            f"--spark.master is {master}, and nobody answers there ({error}); "
            "start the master, or correct the URL"
        ) from None


def check_java() -> None:
    """Raise UserError if there is no Java, or an old one, where Spark's own scripts look for it."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    advice = (
        f"Spark needs Java {OLDEST_JAVA} or newer: install it "
        "(Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    )
    if not program:
        raise UserError(f"there is no Java{f' in JAVA_HOME ({home})' if home else ''}; {advice}")
    output = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'version "(?:1\.)?(\d+)', output.stderr)
    if not version or int(version[1]) < OLDEST_JAVA:
        raise UserError(
            f"{program} is Java {version[1] if version else 'of an unknown version'}; {advice}"
        )


def count_slots(context: SparkContext) -> tuple[int, int]:
    """Return how many tasks can run at once, as Spark counts for a barrier stage, and executors."""
    if context._jsc is None:
        raise UserError("the Spark session was stopped; run the command again to continue")
    scala = context._jsc.sc()
    slots = scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile())
    is_driver_counted = not is_local(context)
    return slots, scala.getExecutorMemoryStatus().size() - is_driver_counted


def is_local(context: SparkContext) -> bool:
    """Return whether tasks run in the driver's own Java: then there is nothing to wait for."""
    return re.match(r"local(\[|$)", context.master) is not None


def explain_failure(error: Exception) -> Exception:
    """Return the one line of Spark's pages of traces that a person needs."""
    text = str(getattr(error, "java_exception", None) or error)
    if known := re.search(r"paceline\.errors\.UserError: (.*)", text):
        return UserError(known[1])
    if missing := re.search(r"ModuleNotFoundError: (No module named .*)", text):
        return UserError(
            f"the executors' Python has {missing[1][0].lower()}{missing[1][1:]}; "
            "give it the same packages, see docs/spark.md"
        )
    if lacking := re.search(r'Cannot run program "([^"]+)"', text):
        return UserError(
            f"the executors have no Python {lacking[1]}; "
            "name theirs in PYSPARK_PYTHON, see docs/spark.md"
        )
    if clash := re.search(r"\[PYTHON_VERSION_MISMATCH\] (.*)", text):
        return UserError(f"{clash[1]}; name the executors' Python in PYSPARK_PYTHON")
    if raised := re.search(
        r"^(?!org\.|java\.|py4j)[\w.]*(?:Error|Exception)\b.*$", text, re.MULTILINE
    ):
        return WorkerFailed("worker 0", raised[0], None)
    return WorkerFailed("worker 0", (text.strip().splitlines() or [type(error).__name__])[0], None)


def write_package(file: Path) -> str:
    """Write this package as a zip file for --py-files; return its path."""
    package = Path(__file__).parents[2]
    files = {
        path: Path("paceline", path.relative_to(package)) for path in sorted(package.rglob("*.py"))
    }
    try:
        metadata = distribution("paceline").read_text("METADATA")
    except PackageNotFoundError:
        metadata = None
    sources = (package / "kernels" / "cc").glob("*")  # their hash names the library
    files |= {path: Path("paceline", path.relative_to(package)) for path in sorted(sources)}
    if library := find_library():
        files[library] = Path("paceline", "kernels", "lib", library.name)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, name in files.items():
            archive.write(path, name)
        if metadata:  # a run notes the versions of its libraries
            archive.writestr(
                f"paceline-{distribution('paceline').version}.dist-info/METADATA", metadata
            )
    return str(file)
