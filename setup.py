"""The packages of the wheel: tfm, and the folder configs as tfm/configs; all else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["tfm*"]), "tfm.configs"], package_dir={"tfm.configs": "configs"})
