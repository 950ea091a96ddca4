"""Runs the example of README.md: python -m benchmarks.readme_example --workdir=DIR [--workdir=DIR2 ...]

The example turns the heads of the decoder's cross-attention off, one after the other. README.md says that at
most one of the eight heads changes the translation in each of the runs with the seeds 0 to 4:

  tfm train --config=quickstart --workdir=runs/SEED --config.training.seed=SEED

Exits with an error if the claim is false for a run, because then README.md has to change.
"""

import argparse
import contextlib
import io
import pathlib

from tests.support.pages import BLOCK

README = pathlib.Path(__file__).parent.parent / "README.md"
RUN = "runs/quickstart"  # in the code of README.md
UNCHANGED = "Das Tier überquerte die Straße nicht, weil es zu müde war."


def main() -> None:
    """Prints the changed translations of each run, and checks the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", action="append", required=True)
    for workdir in parser.parse_args().workdir:
        changed = find_changes(run_example(workdir))
        print(f"{workdir}: {len(changed)} of 8 heads change the translation", *changed, sep="\n", flush=True)
        if len(changed) > 1:
            raise SystemExit(f"README.md says that at most one head matters, but {len(changed)} do.")


def read_example() -> tuple[str, str]:
    """Returns the code of README.md and the output below it."""
    (block,) = BLOCK.findall(README.read_text(encoding="utf-8"))
    return block


def run_example(workdir: str) -> list[str]:
    """Returns the lines that the code of README.md prints for a run of the quick start."""
    code, _ = read_example()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code.replace(RUN, workdir), str(README), "exec"), {})
    return printed.getvalue().splitlines()


def find_changes(lines: list[str]) -> list[str]:
    """Returns the lines "layer head translation" whose translation is not `UNCHANGED`."""
    return [line for line in lines if line.split(" ", 2)[2] != UNCHANGED]


if __name__ == "__main__":
    main()
