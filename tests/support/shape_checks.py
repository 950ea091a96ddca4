"""Checks the shapes and dtypes that functions declare with jaxtyping at every call of a test.

Importing this module makes Python check `CHECKED` when it imports them, so conftest.py imports it first.
"""

import beartype
from jaxtyping import install_import_hook

CHECKED = ("tfm.attention", "tfm.blockwise_attention", "tfm.masks", "tfm.positions", "tfm.losses")
# An int is also a float.
check_types = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))

install_import_hook(CHECKED, f"{__name__}.check_types")
