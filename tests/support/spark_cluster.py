"""A standalone Spark master and two workers from PySpark's own files. Not a test itself.

    python tests/support/spark_cluster.py FOLDER PID

writes the URL of the master to FOLDER/url when both workers have come, and ends everything once the
process PID is gone. Each worker reports 16 cores, so that several tests find room; a test takes two
(spark.cores.max). Each also reports two GPUs, and has its own address, as if it were another host:
Spark starts a speculative task on another host only.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pyspark

from helpers import free_port

CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
TIMEOUT_S = float(os.environ.get("SPARK_CLUSTER_TIMEOUT_S") or 100.0)


def start(folder: Path, name: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
    # As on another machine: without the tests' own settings, and without Paceline.
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "PYTEST", "TF_", "PACELINE"))
    }
    gpu = "-Dspark.worker.resource.gpu"
    gpus = f"{gpu}.amount=2 {gpu}.discoveryScript={folder / 'gpus'}"
    environment |= {
        "SPARK_WORKER_OPTS": gpus,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": host,
    }
    command, null = [CLASS, *arguments, "--host", host], subprocess.DEVNULL
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(command, stdin=null, stdout=log, stderr=log, env=environment)


def alive_workers(port: int) -> int:
    with (
        suppress(OSError, ValueError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=5) as page,
    ):
        return json.load(page)["aliveworkers"]
    return 0


def main(folder: Path, pid: int) -> None:
    port, page, deadline = free_port(), free_port(), time.monotonic() + TIMEOUT_S
    (folder / "gpus").write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["3", "5"]}'\n""")
    (folder / "gpus").chmod(0o755)
    url, ports = f"spark://127.0.0.1:{port}", ("--port", str(port), "--webui-port", str(page))
    processes = [
        start(folder, "master", "127.0.0.1", "org.apache.spark.deploy.master.Master", *ports)
    ]
    try:
        for name, host in (("worker-1", "127.0.0.1"), ("worker-2", "127.0.0.2")):
            size = ["--cores", "16", "--memory", "16g", "--webui-port", "0", "--work-dir"]
            worker = ("org.apache.spark.deploy.worker.Worker", url, *size, str(folder / name))
            processes.append(start(folder, name, host, *worker))
        while alive_workers(page) < 2:
            assert time.monotonic() < deadline, "the workers of the Spark cluster do not come"
            time.sleep(0.2)
        (folder / "url.tmp").write_text(url)
        (folder / "url.tmp").rename(folder / "url")
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.5)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # through `finally`
    main(Path(sys.argv[1]), int(sys.argv[2]))
