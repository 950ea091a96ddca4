"""Hours of training, watched from outside: python -m benchmarks.soak -- train.py --workdir=RUN --config=...

Runs the command behind "--" and ends it with SIGTERM when the time is over. Every ten seconds it notes the
process's own memory, open files, threads and processor time in RUN/soak.jsonl. Prints one JSON line: the
slope an hour of each, by least squares over the second half, when warming up is over, and the processor time
of a step in the second and in the last quarter.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np

EVERY = 10.0  # seconds
FIELDS = ("own_memory_mb", "open_files", "threads")


def main():
    arguments = parse()
    command = arguments.command
    process = subprocess.Popen([sys.executable, *command])
    workdir = next(word.partition("=")[2] for word in command if word.startswith("--workdir="))
    samples, began = [], time.monotonic()
    while process.poll() is None:
        if time.monotonic() - began > 60 * arguments.minutes:
            process.send_signal(signal.SIGTERM)
            process.wait()
            break
        time.sleep(EVERY)
        samples.append(sample(process.pid, workdir) | {"seconds": time.monotonic() - began})
        with open(os.path.join(workdir, "soak.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps(samples[-1]) + "\n")
    print(json.dumps(summary([row for row in samples if "threads" in row]) | {"exit": process.returncode}))


def sample(pid, workdir):
    """What a process holds now; only the step once it has ended."""
    row = {"step": last_step(workdir)}
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            status = dict(line.split(":", 1) for line in file)
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            ticks = sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
        return row | {
            "own_memory_mb": int(status["RssAnon"].split()[0]) / 1024,
            "threads": int(status["Threads"]),
            "open_files": len(os.listdir(f"/proc/{pid}/fd")),
            "processor_seconds": ticks / os.sysconf("SC_CLK_TCK"),
        }
    except (FileNotFoundError, KeyError):  # it has ended
        return row


def last_step(workdir):
    """Of the newest line of metrics.jsonl, or 0."""
    try:
        with open(os.path.join(workdir, "metrics.jsonl"), "rb") as file:
            return json.loads(file.readlines()[-1])["step"]
    except (FileNotFoundError, IndexError, ValueError):
        return 0


def summary(samples):
    """Slopes and ends of a list of samples."""
    half = samples[len(samples) // 2 :]
    hours = np.array([row["seconds"] for row in half]) / 3600
    found = {"minutes": round(samples[-1]["seconds"] / 60, 1), "steps": samples[-1]["step"]}
    for name in FIELDS:
        values = [row[name] for row in half]
        found[name] = {
            "slope_an_hour": round(float(np.polyfit(hours, values, 1)[0]), 2),
            "least": round(min(values), 1),
            "most": round(max(values), 1),
        }
    quarter = len(samples) // 4
    found["processor_seconds_a_step"] = {
        "second_quarter": cost(samples[quarter : 2 * quarter]),
        "last_quarter": cost(samples[-quarter:]),
    }
    return found


def cost(samples):
    """Processor seconds a step, evaluation and checkpoints among them."""
    steps = samples[-1]["step"] - samples[0]["step"]
    return round((samples[-1]["processor_seconds"] - samples[0]["processor_seconds"]) / max(steps, 1), 4)


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("command", nargs="+", help="after --: train.py and its flags")
    return parser.parse_args()


if __name__ == "__main__":
    main()
