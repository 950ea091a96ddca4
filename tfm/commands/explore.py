"""Explores a run or an export in the browser: tfm explore --workdir=DIR [EXAMPLE ...]

Serves the page of tfm visualize with a field for your own examples, until Ctrl-C. A click on a head, a
sublayer or a token turns it off, and the page shows what changes: the result, the probability of each token,
and the attention, next to the Python code that does the same.
An example is what tfm visualize takes: a sentence to translate or to parse, a text to read for a language
model or BERT, a picture to classify or to search for objects (a file, or the number of a test picture), the
class of a picture to generate, a caption to draw, or a story with a question. Examples on the command line
replace the default examples.
The page is only for browsers on this machine. Its address contains a random token, without which the server
answers nothing.
"""

import logging
import os
import threading
import webbrowser
from typing import Any

from tfm.commands.command import command
from tfm.commands.options import Explore
from tfm.commands.page_server import PageServer
from tfm.commands.visualize import choose_examples, make_title
from tfm.errors import UserError
from tfm.interpret.observation import Observes, is_picture_file
from tfm.interpret.switches import write_script
from tfm.io import local_copies
from tfm.io.files import read_limited
from tfm.tasks.translation.pipeline import TextTranslation
from tfm.visualize.live import MAX_PICTURE_BYTES, Example, LiveExamples
from tfm.workdir import runs

log = logging.getLogger(__name__)


@command
def main(options: Explore) -> None:
    """Serves the page until Ctrl-C. Prints its address, and opens it in the browser unless --no_browser."""
    run = options.load()
    server = open_server(run, options)
    print(f"{server.url}\nCtrl-C stops the server.", flush=True)
    if not options.no_browser:
        # On a thread, because some browsers return only when they are closed.
        threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.wait()
        print("Stopped.")
    finally:
        server.server_close()


def open_server(run: runs.Run, options: Explore) -> PageServer:
    """Returns the server of a run, after all programs of the page are compiled.

    Raises:
      UserError: if the task cannot observe its model, there is no example, an example cannot be used, or the
        port cannot be used.
    """
    if not isinstance(run.task, Observes):
        raise UserError(
            f"tfm explore needs a task that can observe its model, but the task of this run, "
            f"{run.task.config.task!r}, cannot."
        )
    texts = choose_examples([*options.sentences, *options.arguments], run.task)
    if not texts:
        raise UserError("The data of the run have no example to begin with. Give one after the flags.")
    examples = [read_example(run.task, text) for text in texts]
    variables = runs.single_model_variables(run)

    def make_python(example: str, edits: str) -> str:
        return write_python(options, run, example, edits)

    live = LiveExamples(run.task, variables, make_python, options.max_tokens)
    title = make_title(options.workdir, run.steps)

    def make_page(path: str) -> str:
        return live.make_page(examples, title, path)

    log.info("Compiling the programs of the page ...")
    make_page("")
    live.warm_up(examples[0])
    return PageServer(options.port, make_page, live.answer)


def read_example(task: Observes, text: str) -> Example:
    """Returns an example of the command line. For the path of a picture, it is its name and its bytes.

    Raises:
      UserError: if the file is too large.
    """
    if not is_picture_file(task, text):
        return Example(text)
    return Example(os.path.basename(text), read_limited(text, MAX_PICTURE_BYTES))


def write_python(options: Explore, run: runs.Run, example: str, edits: str) -> str:
    """Returns the text of a Python script that loads the run and computes an example with edits.

    Args:
      options: the options that loaded the run.
      run: the run.
      example: the example.
      edits: source code of the edits.
    """
    chosen: dict[str, Any] = {"checkpoint": options.checkpoint, "average": options.average}
    defaults = {"checkpoint": None, "average": 1}
    arguments = [
        repr(local_copies.show(options.workdir)),
        *(f"{k}={v!r}" for k, v in chosen.items() if v != defaults[k]),
    ]
    translates = isinstance(run.task, TextTranslation)
    kind = "Translator" if translates else "Observer"
    call = f"observe({example!r}).predictions"
    if translates:
        decoding = {
            path.removeprefix("decoding."): value
            for path, value in options.overrides.items()
            if path.startswith("decoding.")
        }
        if run.task.config.decoding.samples:
            decoding["samples"] = 0  # the page shows the search
        call = f"translate([{example!r}]{''.join(f', {k}={v!r}' for k, v in decoding.items())})"
    return write_script(kind, ", ".join(arguments), edits, call)
