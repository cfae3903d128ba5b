"""Loads pipelines from files and folders, and reports the problems of all files at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from headrace.pipelines.definitions.checks import problems_of
from headrace.pipelines.definitions.definition import DefinitionError, Pipeline, Place, Problem
from headrace.pipelines.definitions.fields import Problems
from headrace.pipelines.definitions.parts import overridden, read_pipeline
from headrace.pipelines.definitions.python.files import defines_pipelines, read_python
from headrace.pipelines.definitions.yaml_files import read_yaml

YAML_SUFFIXES = (".yaml", ".yml")
FILES_MAX = 1000
DECLARATIVE = ("spark-pipeline.yaml", "spark-pipeline.yml")
_NOT_DECLARATIVE = (
    "is a definition for spark-pipelines, whose flows only run to an end and then stop: they cannot be supervised here."
    " Run it with spark-pipelines, or write its tables as steps and sinks"
)


def load(path: Path | str, overrides: Mapping[str, str] = MappingProxyType({})) -> list[Pipeline]:
    """Load a file, or all files of a folder; raise DefinitionError with all problems, including conflicts between pipelines.

    `overrides` take precedence over the files: topic settings by name, `spark.…`, `trigger`, `checkpoint`.
    """
    problems = Problems(os.environ)
    pipelines: list[Pipeline] = []
    for file in _files(Path(path)):
        try:
            pipelines += _load_file(file, problems, overrides)
        except DefinitionError as error:
            problems.found += error.problems
    wrong = [*problems.found, *problems_of(pipelines)]
    if wrong:
        raise DefinitionError(wrong)
    return pipelines


def _load_file(file: Path, problems: Problems, overrides: Mapping[str, str]) -> list[Pipeline]:
    if file.name in DECLARATIVE:
        problems.add(Place(file), _NOT_DECLARATIVE)
        return []
    if file.suffix == ".py":
        return read_python(file, problems, overrides)
    found = [read_pipeline(document, file, problems) for document in read_yaml(file)]
    return [overridden(pipeline, overrides, problems) for pipeline in found]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(_in_folder(path))
        if not found:
            expected = "*.yaml, or *.py with pipeline(…), here or in folders of it"
            raise DefinitionError([Problem(Place(path), f"has no pipelines: {expected}")])
        if len(found) > FILES_MAX:
            raise DefinitionError([Problem(Place(path), f"has more than {FILES_MAX} files of pipelines")])
        return found
    if not path.exists():
        raise DefinitionError([Problem(Place(path), "does not exist")])
    if path.suffix not in (*YAML_SUFFIXES, ".py"):
        raise DefinitionError([Problem(Place(path), "is no pipeline: *.yaml, *.py or a folder is expected")])
    return [path]


def _in_folder(folder: Path) -> Iterator[Path]:
    """Yield the definition files in the folder and its subfolders, but not deeper, where data may be stored."""
    for file in (*folder.glob("*.*"), *folder.glob("[!.]*/*.*")):
        if file.name.startswith((".", "test_", "conftest")) or not file.is_file():
            continue
        if file.suffix in YAML_SUFFIXES or (file.suffix == ".py" and defines_pipelines(file)):
            yield file
