"""The compiled modules. A machine without a C compiler gets their pure-Python twins instead (see records/kernel.py)."""

from setuptools import Extension, setup

MODULES = ("_kernel", "_columns")

try:
    from Cython.Build import cythonize

    extensions = cythonize(
        [
            Extension(
                f"headrace.records.{name}",
                [f"src/headrace/records/{name}.pyx"],
                depends=["src/headrace/records/_wire.pxd"],
                optional=True,
                extra_compile_args=["-O3"],
            )
            for name in MODULES
        ],
        include_path=["src"],
        language_level=3,
    )
except ImportError:
    extensions = []

setup(ext_modules=extensions)
