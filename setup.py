"""The compiled modules. Without a C compiler the pure-Python fallbacks are used (see records/kernel.py)."""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

MODULES = ("_kernel", "_columns", "_decode", "_compaction")


class BuildIfPossible(build_ext):
    """Builds what it can: a missing or broken compiler must not prevent the installation.

    The `optional` flag of setuptools does not cover a compiler that is missing.
    """

    def build_extensions(self) -> None:
        built = []
        for extension in self.extensions:
            try:
                self.build_extension(extension)
            except Exception as error:
                print(f"{extension.name} was not compiled, the pure-Python fallback is used (slower): {error}", file=sys.stderr)
            else:
                built.append(extension)
        self.extensions = built


try:
    from Cython.Build import cythonize

    extensions = cythonize(
        [
            Extension(
                f"headrace.records.{name}",
                [f"src/headrace/records/{name}.pyx"],
                depends=["src/headrace/records/_wire.pxd"],
                extra_compile_args=["-O3"],
            )
            for name in MODULES
        ],
        include_path=["src"],
        language_level=3,
    )
except ImportError:
    extensions = []

setup(ext_modules=extensions, cmdclass={"build_ext": BuildIfPossible})
