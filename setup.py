"""The packages of the wheel: tfm with its page, and the folder configs as tfm/configs; all else is in
pyproject.toml."""

from setuptools import find_packages, setup

packages = [*find_packages(include=["tfm*"], exclude=["tfm.configs"]), "tfm.configs", "tfm.visualize.page"]
setup(packages=packages, package_dir={"tfm.configs": "configs"})
