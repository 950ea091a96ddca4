"""Parts that a config names: short names of tfm, and dotted names of other packages."""

import difflib
import importlib
import importlib.machinery
import os
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tfm.errors import UserError

if TYPE_CHECKING:
    from ml_collections import config_dict

IDENTIFIER = r"[A-Za-z_]\w*"
MODULE = re.compile(rf"{IDENTIFIER}(\.{IDENTIFIER})*", re.ASCII)
# "package.module:attribute" or "package.module": names of modules outside tfm.
DOTTED = re.compile(rf"{MODULE.pattern}(\.{IDENTIFIER}|:{IDENTIFIER})", re.ASCII)
NAME_FIELDS = ("name", "task", "kind", "trackers")
IMPORTLIB = ("<frozen importlib", os.path.dirname(importlib.__file__))  # of Python's own frames of an import
LIBRARIES = (
    *(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "purelib", "platlib")),
    os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep,  # tfm
)
allowed_modules: set[str] = set()


def find_by_name(known: Mapping[str, Any], name: str, path: str, needs: tuple[str, ...] = ()) -> Any:
    """Returns the object that a config field names: a part of tfm, or a part of the user's package.

    Args:
      known: the parts of tfm, {short name: part}.
      name: a short name, "package.module:attribute", or "package.module".
      path: path of the field, for the error message.
      needs: attributes that a part of the user's package must have.

    Raises:
      UserError: if there is no such part, if its module is not allowed or cannot be imported, or if it does
        not have an attribute of `needs`.
    """
    if isinstance(name, str) and name in known:
        return known[name]
    if not is_dotted(name):
        raise UserError(
            f"{path} must be one of {list(known)}, or your own 'package.module[:attribute]', got {name!r}."
        )
    value = _import(name, path)
    missing = [attribute for attribute in needs if not hasattr(value, attribute)]
    if missing:
        raise UserError(f"{path}={name} must have {' and '.join(needs)}, but it has no {missing[0]}.")
    return value


def find_module(known: Mapping[str, str], name: str, path: str, needs: tuple[str, ...]) -> Any:
    """Returns the module of tfm, or the part of the user's package, that a config field names.

    Args:
      known: the modules of tfm, {short name: name of the module}. Only the named module is imported.
      name, path, needs: see `find_by_name`.

    Raises:
      UserError: see `find_by_name`.
    """
    found = find_by_name(known, name, path, needs)
    return importlib.import_module(found) if isinstance(found, str) else found


def is_dotted(name: Any) -> bool:
    """Returns whether a value is the name of an object outside tfm, such as "my_lab.models:gru"."""
    return isinstance(name, str) and bool(DOTTED.fullmatch(name))


def allow_modules(names: Iterable[str]) -> None:
    """Allows configs to import these modules and their submodules.

    Importing a module runs its code, and a config.json may come from somebody else. So tfm imports foreign
    modules only if the command line or a config file in Python names them. Modules of tfm are always allowed.

    Args:
      names: names such as "my_lab.models" or "my_lab.models:gru".

    Raises:
      UserError: if a name does not have the form of the name of a module. Whether the module exists is not
        checked.
    """
    for name in names:
        module = name.partition(":")[0]
        if not MODULE.fullmatch(module):
            raise UserError(f"Expected the name of a module, such as my_lab.models, got {name!r}.")
        allowed_modules.add(module)


class _CurrentFolder:
    """A finder of modules in the current folder, for imports by files of the user only.

    Otherwise, a library or tfm that looks for an optional package that is not installed, such as `datasets`,
    would run a file of this name in the current folder.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Returns the spec of a module that a file of the user imports, or None."""
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith(IMPORTLIB):
            frame = frame.f_back
        importer = os.path.realpath(frame.f_code.co_filename)
        if path is not None or (importer.startswith(LIBRARIES) and importer != os.path.realpath(__file__)):
            return None
        return importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])


def allow_current_folder() -> None:
    """Lets the user's files import modules from the current folder, as `python FILE` does for its folder."""
    if _CurrentFolder not in sys.meta_path:
        sys.meta_path.append(_CurrentFolder)


def dotted_names(mapping: "Mapping[str, Any] | config_dict.ConfigDict") -> list[str]:
    """Returns all dotted names in a config with nested sections, or in {path: value}.

    Only the fields in `NAME_FIELDS` can contain such names. A name may occur several times.
    """
    names = []
    for key in mapping:
        if is_section(mapping[key]):
            names += dotted_names(mapping[key])
        elif key.rpartition(".")[2] in NAME_FIELDS:
            value = mapping[key]
            names += filter(is_dotted, value if isinstance(value, tuple | list) else [value])
    return names


def module_names(names: Iterable[str]) -> list[str]:
    """Returns the modules of names such as "my_lab.models:gru", each module once."""
    return list(dict.fromkeys(name.partition(":")[0] for name in names))


def import_flags(names: Iterable[str]) -> list[str]:
    """Returns --import for each module in a list of names such as "my_lab.models:gru"."""
    return [f"--import={module}" for module in module_names(names)]


def _import(name: str, path: str) -> Any:
    """Imports the module or attribute with a dotted name, from `sys.path` or the current folder.

    Raises:
      UserError: if the module is not allowed, cannot be imported, or has no such attribute.
    """
    module, _, attribute = name.partition(":")
    if not any(f"{module}.".startswith(f"{allowed}.") for allowed in ("tfm", *allowed_modules)):
        raise UserError(
            f"{path} names {name!r}, which is not part of tfm and is not imported by default. If you trust "
            f"it, give --import={module}, or call tfm.config.allow_modules(['{module}'])."
        )
    allow_current_folder()
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        problem = f"{path}: importing the module {module!r} fails: {type(error).__name__}: {error}."
        if absent and f"{module}.".startswith(f"{absent}."):
            parent, _, last = absent.rpartition(".")
            folders = getattr(sys.modules.get(parent), "__path__", [os.getcwd()])
            near = difflib.get_close_matches(last, [each.name for each in pkgutil.iter_modules(folders)], n=1)
            problem = (
                f"{path} names the module {module!r}, but there is no {absent!r} on sys.path or in the "
                f"current folder; {f'did you mean {near[0]!r}? An' if near else 'an'} attribute of a module "
                "is written 'package.module:attribute'."
            )
        raise UserError(problem) from error
    if attribute and not hasattr(imported, attribute):
        raise UserError(f"{path}={name}: the module {module!r} has no {attribute!r}.")
    return getattr(imported, attribute) if attribute else imported


def is_section(value: Any) -> bool:
    """Returns whether a value is a mapping."""
    from ml_collections import config_dict  # imported here because commands read their flags without it

    return isinstance(value, Mapping | config_dict.ConfigDict)
