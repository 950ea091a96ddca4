"""The configs that tfm ships, such as `from tfm.configs import quickstart`.

An installed wheel has them in this folder. A checkout has them in the folder `configs` next to the package.
"""

import os

__path__.append(os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "configs"))
