"""Several workers of Paceline as one contender.

    python -m benchmarks.contender_workers DEPTH DATA_FOLDER ROUND_STEPS HOST ADDRESS ...

Every turn goes to all workers and ends when all have ended. There is a HOST and an ADDRESS for each
worker. HOST is the network namespace of the worker; "-" is that of this process.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.protocol import Channel, Clock


def start(
    of_model: list[str], host: str, index: int, addresses: list[str]
) -> subprocess.Popen[str]:
    inside = [] if host == "-" else ["ip", "netns", "exec", host]
    command = [
        *inside,
        sys.executable,
        "-m",
        "benchmarks.contender_paceline",
        *of_model,
        str(index),
        *addresses,
    ]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def main() -> None:
    channel = Channel()
    hosts, addresses = sys.argv[4::2], sys.argv[5::2]
    workers = [start(sys.argv[1:4], host, index, addresses) for index, host in enumerate(hosts)]
    while (steps := channel.next_turn()) is not None:
        clock = Clock.start()
        for worker in workers:
            worker.stdin.write(f"go {steps}\n")
        answers = [json.loads(worker.stdout.readline() or "null") for worker in workers]
        if None in answers:
            sys.exit(f"worker {answers.index(None)} ended; what it said stands above")
        wall_s, cpu_s = clock.read()
        channel.report(
            answers[0]["images"], wall_s, cpu_s + sum(answer["cpu_s"] for answer in answers)
        )
    for worker in workers:
        worker.stdin.close()


if __name__ == "__main__":
    main()
