"""The one compiled module. A machine without a C compiler gets its pure-Python twin instead (see records/kernel.py)."""

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize

    extensions = cythonize(
        [Extension("headrace.records._kernel", ["src/headrace/records/_kernel.pyx"], optional=True, extra_compile_args=["-O3"])],
        language_level=3,
    )
except ImportError:
    extensions = []

setup(ext_modules=extensions)
