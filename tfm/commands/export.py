"""Exports a run as one portable folder: tfm export --workdir=DIR --output=FOLDER

`tfm.Translator.load(FOLDER)`, eval.py and tfm translate open it like the run. --stablehlo also
writes the search as programs that run without tfm, one for each --stablehlo_shape=ROWSxLENGTH.
"""

import re
from collections.abc import Sequence

from absl import flags

from tfm.commands import cli
from tfm.decoding.config import MAX_TOKENS
from tfm.errors import UserError
from tfm.export import stablehlo
from tfm.export.bundle import check_absent, write_bundle
from tfm.io.files import only_writer
from tfm.workdir import runs

DEFAULT_SHAPE = "1x64"
LARGEST = MAX_TOKENS  # rows and tokens, like decoding.batch_size and decoding.max_input


def parse_shape(text: str) -> tuple[int, int]:
    """ "16x64" -> (16, 64).

    Raises:
      UserError: it is something else, or larger than a batch of the search can be.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text, re.ASCII)
    if not found or max(map(int, found.groups())) > LARGEST:
        raise UserError(
            f"--stablehlo_shape must be ROWSxLENGTH such as 16x64, each at most {LARGEST:,}, got {text!r}."
        )
    return int(found[1]), int(found[2])


def programs(run: runs.Run, shapes: Sequence[str]) -> dict[str, bytes]:
    """{file name: bytes} of the search for each of the shapes, texts such as "16x64"."""
    sizes = [parse_shape(shape) for shape in shapes]
    return {
        f"translate-{rows}x{length}.stablehlo": stablehlo.serialized(
            stablehlo.search_program(run, rows, length)
        )
        for rows, length in sizes
    }


def define_flags(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """The flags of the command, in `values`."""
    cli.define_finished_run(values, argv)
    text = "Folder to write; absent or empty."
    flags.DEFINE_string("output", None, text, values, required=True)
    flags.DEFINE_bool("stablehlo", False, "Also write the search as StableHLO.", values)
    text = f"ROWSxLENGTH of a batch; {DEFAULT_SHAPE} if not given."
    flags.DEFINE_multi_string("stablehlo_shape", None, text, values)


def main(argv: Sequence[str] | None = None) -> None:
    """Exports; see `tfm.commands.cli.parse` for `argv` and what is raised."""
    arguments, _ = cli.parse(__name__, argv, define_flags)
    shapes = arguments.stablehlo_shape or ([DEFAULT_SHAPE] if arguments.stablehlo else [])
    for shape in shapes:
        parse_shape(shape)
    if shapes:
        runs.require_translation(cli.read_config(arguments), "--stablehlo")
    check_absent(arguments.output)
    with only_writer(arguments.output, "--output"):
        run = cli.load_run(arguments)
        write_bundle(run, arguments.output, workdir=arguments.workdir, programs=programs(run, shapes))
    print(f"wrote {arguments.output}")
