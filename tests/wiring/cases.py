"""The cases of all config sections, and the values that the type of a field does not imply.

Each module under tests/ whose name begins with `wiring` describes the sections of one task, system or
package. It defines

    CASES          a list of `tests.wiring.case.Case`
    VALUES         {class of a section: {field: another value}} of the fields that contain paths, names or
                   patterns
    write_data()   optional: writes the data that the cases read into the current folder
"""

import importlib
from collections import ChainMap
from types import ModuleType
from typing import Any

from tests.support.paths import ROOT
from tests.wiring import folder
from tests.wiring.case import Case


def find_modules() -> list[ModuleType]:
    """Returns the modules that describe sections, in the order of their paths."""
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted((ROOT / "tests").rglob("wiring*.py"))]
    return [importlib.import_module(".".join(path.parts)) for path in paths]


MODULES = find_modules()
CASES: list[Case] = [case for module in MODULES for case in module.CASES]
VALUES: dict[type, dict[str, Any]] = dict(ChainMap(*(module.VALUES for module in MODULES)))


def write_data() -> None:
    """Writes the data of all cases into the current folder."""
    folder.write_texts()
    for module in MODULES:
        if "write_data" in vars(module):
            module.write_data()
