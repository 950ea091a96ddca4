"""Writing a run as an export: a portable folder that `tfm.workdir` opens like the run."""

import os
import shutil

from tfm import config
from tfm.checkpoints import manifest
from tfm.devices.memory import count_elements
from tfm.errors import UserError
from tfm.export import model_card
from tfm.io.files import atomic_folder, writing
from tfm.tasks.translation.pipeline import TextTranslation
from tfm.workdir import runs
from tfm.workdir.bundle import CARD_FILE, write_parameters


def write_bundle(run: runs.Run, folder: str, *, workdir: str) -> None:
    """Writes a run as a portable folder. After an error, no partial folder remains.

    Args:
      run: the run, with a single model.
      folder: the folder to write. It must be empty or not exist.
      workdir: the folder of the run, with its assets and the scores of tfm evaluate.

    Raises:
      UserError: if `folder` is not empty or cannot be written.
    """
    folder = os.path.abspath(folder)
    check_absent(folder)
    settings, assets = run.task.config.without_paths(), run.task.assets()
    variables = runs.single_model_variables(run)
    card = model_card.write(
        settings,
        run.steps,
        count_elements(variables["params"]),
        run.task.form.tokenizer if isinstance(run.task, TextTranslation) else None,
        model_card.read_records(workdir, settings.output_suffix),
        assets,
    )
    # A link to an empty folder stays a link.
    with writing(folder), atomic_folder(os.path.realpath(folder)) as temporary:
        config.save(settings, runs.config_path(temporary))
        for name in assets:
            shutil.copyfile(os.path.join(workdir, name), os.path.join(temporary, name))
        write_parameters(temporary, variables, [int(step) for step in run.steps], run.task)
        with open(os.path.join(temporary, CARD_FILE), "w", encoding="utf-8") as file:
            file.write(card)
        manifest.write(temporary, {}, set(os.listdir(temporary)) - {CARD_FILE})


def check_absent(folder: str) -> None:
    """Raises a UserError if the path exists and is not an empty folder."""
    folder = os.path.abspath(folder)
    if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise UserError(
            f"Expected an empty or a new folder, but {folder} is neither. Choose another --output."
        )
