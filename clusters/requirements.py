"""Prints the dependencies of the commands, a line each: python clusters/requirements.py [EXTRA,...]

They are the dependencies in pyproject.toml with those of the extra train, and of further extras. An image
installs them in a layer of their own, before the code.
"""

import pathlib
import sys
import tomllib

ROOT = pathlib.Path(__file__).parents[1]


def read_requirements(extras: list[str]) -> list[str]:
    """Returns the dependencies of the project, of the extra train and of further extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    unknown = set(extras) - set(optional)
    if unknown:
        sys.exit(f"error: Expected extras among {', '.join(optional)}, got {', '.join(sorted(unknown))}.")
    return sum((optional[extra] for extra in ["train", *extras]), start=project["dependencies"])


if __name__ == "__main__":
    print("\n".join(read_requirements([extra for extra in "".join(sys.argv[1:]).split(",") if extra])))
