"""Compiles tfm_native/products.cc, see pyproject.toml for the rest."""

import importlib.metadata
import pathlib

import jax
from setuptools import Extension, setup


def find_folder(distribution: str, name: str) -> str:
    """Returns the folder of a file that an installed distribution contains."""
    files = importlib.metadata.files(distribution) or []
    return str(next(pathlib.Path(file.locate()).resolve().parent for file in files if file.name == name))


products = Extension(
    "tfm_native.products",
    ["tfm_native/products.cc"],
    include_dirs=[jax.ffi.include_dir()],
    library_dirs=[find_folder("onednn-cpu-gomp", "libdnnl.so")],
    libraries=["dnnl"],
    extra_compile_args=["-std=c++17", "-O3", "-fopenmp"],
    extra_link_args=["-fopenmp"],
)
setup(ext_modules=[products])
