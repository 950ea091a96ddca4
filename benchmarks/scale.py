"""What a training step takes on TPUs that are not here: python -m benchmarks.scale --topology=v5e:4x4

Compiles the step of a size for a topology (needs `pip install -e '.[train,tpu]'`) and prints one JSON line:
bytes of a device, collectives, and the least time that the chip's published figures allow. Nothing is
measured. The batch grows with the devices, so that each has as much to do (weak scaling). --table=FILE prints
the lines of a file as the table of benchmarks/notes/tpu_estimates.md instead.
"""

import json
import shlex
import sys
import time

import numpy as np
from absl import app, flags

from benchmarks import hlo, sizes
from benchmarks.topology import compile_for, find_devices
from tfm.models import TransformerConfig
from tfm.tasks.translation.task import Config, Translation
from tfm.training.config import TrainingConfig

FLAGS = flags.FLAGS
flags.DEFINE_enum("size", "base", list(sizes.SIZES), "Model.")
flags.DEFINE_string("topology", "v5e:2x2", "As libtpu names it.")
flags.DEFINE_integer("devices", 0, "Of the topology; 0 is all.")
flags.DEFINE_enum("parallel", "mesh", ("jit", "pmap", "mesh"), "As in training.parallel.")
flags.DEFINE_integer("fsdp", 1, "As in training.mesh_fsdp.")
flags.DEFINE_integer("tensor", 1, "As in training.mesh_tensor.")
flags.DEFINE_integer("rows", 16, "Rows of the batch for each device.")
flags.DEFINE_integer("length", 256, "Tokens of a row's side.")
flags.DEFINE_bool("remat", False, "Compute activations again instead of keeping them.")
flags.DEFINE_string("table", "", "File of lines to print as a table.")

MIB, GIB = 2**20, 2**30
SIDES = ("input", "target")
COLUMNS = (
    ("model", lambda row: row["size"]),
    ("chips", lambda row: f"{row['devices']}"),
    ("data x fsdp x tensor", lambda row: " x ".join(map(str, row["mesh"]))),
    ("state", lambda row: f"{row['state'] / GIB:.2f}"),
    ("peak", lambda row: f"{row['peak'] / GIB:.2f}"),
    *(
        (kind, lambda row, kind=kind: f"{row['collectives'].get(kind, 0) / MIB:,.0f}")
        for kind in ("all-reduce", "all-gather", "reduce-scatter")
    ),
    ("compute", lambda row: f"{row['compute_ms']:.1f}"),
    ("HBM", lambda row: f"{row['memory_ms']:.1f}"),
    ("interconnect", lambda row: f"{row['interconnect_ms']:.1f}"),
    ("step", lambda row: f"{row['step_ms']:.1f}"),
    ("thousand tokens/s", lambda row: f"{row['tokens_per_second'] / 1000:,.0f}"),
    ("of peak", lambda row: f"{100 * row['utilisation']:.0f} %"),
    ("bound", lambda row: row["bound"]),
)


class Vocabulary:
    """Stands in for a tokenizer, of which the step only needs the size."""

    def __len__(self):
        return sizes.VOCABULARY_SIZES[FLAGS.size]


def main(_):
    if FLAGS.table:
        with open(FLAGS.table, encoding="utf-8") as file:
            print_table([json.loads(line) for line in file if line.startswith("{")])
        return
    print(json.dumps(compile_row()), flush=True)


def compile_row():
    """The line of the flags' step."""
    devices, chip = find_devices(FLAGS.topology)
    devices = devices[: FLAGS.devices or None]
    model = TransformerConfig(
        **sizes.SIZES[FLAGS.size][0],
        dtype="bfloat16",
        scan=True,  # compiles in minutes; without it, the layers are spelled out
        remat=FLAGS.remat,
        dropout=0.1,
    )
    training = TrainingConfig(parallel=FLAGS.parallel, mesh_fsdp=FLAGS.fsdp, mesh_tensor=FLAGS.tensor)
    task = Translation(Config(model=model, training=training), Vocabulary())
    shape = (FLAGS.rows * len(devices), FLAGS.length)
    batch = {
        f"{side}{part}": np.zeros(shape, np.int32)
        for side in SIDES
        for part in ("s", "_positions", "_segments")
    }
    began = time.monotonic()
    found = compile_for(task, training, batch, devices, chip)
    tokens = len(SIDES) * shape[0] * shape[1]
    roofline, collectives = found.roofline, {}
    for each in found.collectives:
        collectives[each.kind] = collectives.get(each.kind, 0) + each.total_bytes
    return {
        "command": shlex.join(["python", "-m", "benchmarks.scale", *sys.argv[1:]]),
        "size": FLAGS.size,
        "topology": FLAGS.topology,
        "devices": len(devices),
        "parallel": FLAGS.parallel,
        "mesh": [len(devices) // (FLAGS.fsdp * FLAGS.tensor), FLAGS.fsdp, FLAGS.tensor],
        "rows": FLAGS.rows,
        "length": FLAGS.length,
        "state": found.parameters + found.optimizer,
        "peak": found.peak,
        "flops": found.flops,
        "memory_bytes": found.memory_bytes,
        "collectives": collectives,
        "collective_calls": {
            kind: sum(each.times for each in found.collectives if each.kind == kind)
            for kind in hlo.COLLECTIVES
        },
        "dtypes": sorted({dtype for each in found.collectives for dtype in each.dtypes}),
        "overlapping": sum(each.times for each in found.collectives if each.overlaps),
        "compute_ms": 1000 * roofline.compute,
        "memory_ms": 1000 * roofline.memory,
        "interconnect_ms": 1000 * (roofline.exposed + roofline.overlapped),
        "step_ms": 1000 * roofline.seconds,
        "tokens_per_second": tokens / roofline.seconds,
        "utilisation": roofline.utilisation,
        "bound": roofline.bound,
        "compile_seconds": round(time.monotonic() - began),
    }


def print_table(rows):
    """The rows as Markdown, and below them their commands."""
    print("| " + " | ".join(name for name, _ in COLUMNS) + " |")
    print("|" + " --- |" * len(COLUMNS))
    for row in rows:
        print("| " + " | ".join(text(row) for _, text in COLUMNS) + " |")
    print("\n```")
    for row in rows:
        print(row["command"])
    print("```")


if __name__ == "__main__":
    app.run(main)
