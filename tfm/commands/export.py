"""Exports a run as one portable folder: tfm export --workdir=DIR --output=FOLDER

`tfm.Translator.load(FOLDER)`, tfm evaluate and tfm translate open the folder like the run. --stablehlo also
writes the search as programs that run without tfm, one program for each --stablehlo_shape=ROWSxLENGTH.
--format=huggingface and --format=ctranslate2 write models of these projects.
"""

import re
from collections.abc import Sequence

from tfm.commands.command import command
from tfm.commands.options import Export
from tfm.decoding.config import MAX_TOKENS
from tfm.errors import UserError
from tfm.export import stablehlo
from tfm.export.foreign import write_foreign
from tfm.export.write import check_absent, write_bundle
from tfm.io.files import only_writer
from tfm.workdir import runs

DEFAULT_SHAPE = "1x64"
LARGEST = MAX_TOKENS  # limit of rows and of tokens, as of decoding.batch_size and decoding.max_input


def parse_shape(text: str) -> tuple[int, int]:
    """Parses the shape of a batch: "16x64" -> (16, 64).

    Raises:
      UserError: if the text is no shape, or a number is above `LARGEST`.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text, re.ASCII)
    if not found or max(map(int, found.groups())) > LARGEST:
        raise UserError(
            f"--stablehlo_shape must be ROWSxLENGTH such as 16x64, each at most {LARGEST:,}, got {text!r}."
        )
    return int(found[1]), int(found[2])


def programs(run: runs.Run, shapes: Sequence[str]) -> dict[str, bytes]:
    """Returns {file name: bytes} of the StableHLO program of the search for each shape.

    Args:
      run: the run to export.
      shapes: shapes of batches as text, such as "16x64".
    """
    sizes = [parse_shape(shape) for shape in shapes]
    return {
        f"translate-{rows}x{length}.stablehlo": stablehlo.serialized(
            stablehlo.search_program(run, rows, length)
        )
        for rows, length in sizes
    }


def _check_flags(options: Export) -> None:
    """Raises a UserError if a flag has no effect in the format."""
    if options.format != "tfm" and (options.stablehlo or options.stablehlo_shapes):
        raise UserError(f"--stablehlo needs --format=tfm, got {options.format}. Leave out one of them.")
    if options.format != "ctranslate2" and options.quantization != "float32":
        raise UserError(
            f"--quantization={options.quantization} needs --format=ctranslate2, got {options.format}."
        )


@command
def main(options: Export) -> None:
    """Exports."""
    shapes = options.stablehlo_shapes or ((DEFAULT_SHAPE,) if options.stablehlo else ())
    for shape in shapes:
        parse_shape(shape)
    if shapes:
        runs.require_translation(options.config, "--stablehlo")
    _check_flags(options)
    check_absent(options.output)
    with only_writer(options.output, "--output"):
        run = options.load()
        if options.format == "tfm":
            write_bundle(run, options.output, workdir=options.workdir, programs=programs(run, shapes))
        else:
            write_foreign(
                run,
                options.output,
                workdir=options.workdir,
                format=options.format,
                quantization=options.quantization,
            )
    print(f"wrote {options.output}")
