"""Imports a model of Hugging Face transformers or fairseq: tfm import --from=FOLDER --output=EXPORT

The folder contains config.json, safetensors and the files of the tokenizer, or model.pt of fairseq. With
--format=word2vec, --from is a file of word vectors. All commands open the export.
"""

import os

from tfm.commands.command import command
from tfm.commands.options import Import
from tfm.errors import UserError
from tfm.export.fairseq import CHECKPOINT_FILE, import_checkpoint
from tfm.export.formats import import_file
from tfm.export.from_huggingface import import_folder
from tfm.huggingface.folder import CONFIG_FILE
from tfm.huggingface.vocabulary import Languages
from tfm.io import local_copies
from tfm.io.files import only_writer


@command
def main(options: Import) -> None:
    """Imports a folder or a file, and prints the path of the export.

    Raises:
      UserError: if a flag has no effect on this format, the model cannot be imported, or the output exists.
    """
    if options.format:
        if options.source_language or options.target_language or options.source_prefix:
            raise UserError(
                "--source_language, --target_language and --source_prefix have no effect with --format. "
                "Leave them out."
            )
        with only_writer(options.output, "--output"):
            import_file(options.folder, options.output, format=options.format)
        print(f"wrote {local_copies.show(options.output)}")
        return
    languages = Languages(options.source_language, options.target_language)
    is_fairseq = os.path.exists(os.path.join(options.folder, CHECKPOINT_FILE))
    with only_writer(options.output, "--output"):
        if is_fairseq and not os.path.exists(os.path.join(options.folder, CONFIG_FILE)):
            if options.source_language or options.target_language or options.source_prefix:
                raise UserError(
                    "--source_language, --target_language and --source_prefix have no effect on checkpoints "
                    "of fairseq. Leave them out."
                )
            import_checkpoint(options.folder, options.output)
        else:
            import_folder(
                options.folder, options.output, languages=languages, source_prefix=options.source_prefix
            )
    print(f"wrote {local_copies.show(options.output)}")
