"""Exports a run as one portable folder: tfm export --workdir=DIR --output=FOLDER

`tfm.Translator.load(FOLDER)`, tfm evaluate and tfm translate open the folder like the run.
--format=huggingface and --format=ctranslate2 write models of these projects. --format=page writes a web page
that translates and shows the attention without Python.
"""

from tfm.commands.command import command
from tfm.commands.options import Export
from tfm.errors import UserError
from tfm.export.foreign import write_foreign
from tfm.export.write import check_absent, write_bundle
from tfm.io import local_copies
from tfm.io.files import only_writer


def _check_flags(options: Export) -> None:
    """Raises a UserError if a flag has no effect in the format."""
    if options.format != "ctranslate2" and options.quantization != "float32":
        raise UserError(
            f"--quantization={options.quantization} needs --format=ctranslate2, got {options.format}."
        )


@command
def main(options: Export) -> None:
    """Writes the export and prints its path.

    Raises:
      UserError: if the output exists, flags contradict each other, the run cannot be loaded, or the format
        does not support its model.
    """
    _check_flags(options)
    check_absent(options.output)
    with only_writer(options.output, "--output"):
        run = options.load()
        if options.format == "tfm":
            write_bundle(run, options.output, workdir=options.workdir)
        elif options.format == "page":
            # These import matplotlib, which takes a second.
            from tfm.commands.visualize import make_title
            from tfm.export.page import write_page

            title = make_title(options.workdir, run.steps)
            write_page(run, options.output, workdir=options.workdir, title=title)
        else:
            write_foreign(
                run,
                options.output,
                workdir=options.workdir,
                format=options.format,
                quantization=options.quantization,
            )
    print(f"wrote {local_copies.show(options.output)}")
