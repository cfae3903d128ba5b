"""The documents name only files, modules and links that exist, and retired words do not come back as identifiers."""

from __future__ import annotations

import fnmatch
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.prove.registry import ROOT

PACKAGE = ROOT / "src/headrace"
SOURCES = ("src", "tests", "testkit", "tools", "bench", "examples")
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/decisions").glob("*.md"),
        ROOT / "examples/README.md",
    ]
)
SUFFIXES = ("", ".py", ".pyx")

# Words of ARCHITECTURE.md's table that stand in code font but are no modules.
NO_MODULES = {
    *("headrace demo", "make run", "dump-log", "pyspark_headrace", "cli", "demo", "testing"),
    *("__consumer_offsets", "__transaction_state"),
}

# Words that were metaphors or translated idiom, and what is written instead. They may not be part of an identifier or of
# a module's name, except in the names of tests, where they can be ordinary English ("hands over").
RETIRED = {
    "asked": "request, query; CoordinatorRequest",
    "beside": "background, concurrent; BackgroundTasks",
    "chance": "random for a Random, …_PROBABILITY for a number",
    "company": "ConnectionPool",
    "contestant": "system (of the benchmark)",
    "contestants": "systems (of the benchmark)",
    "crew": "workers",
    "doomed": "deleted",
    "face": "sync, interface, API",
    "glance": "what is done: a heartbeat without a decision",
    "guest": "client, classic member",
    "guests": "clients, classic members",
    "hands": "executor; handshake",
    "hired": "started",
    "room": "handlers; space",
    "rooms": "handlers",
    "shelf": "cache",
    "told": "notified, reported, logged, last sent",
    "twin": "fallback",
    "twins": "fallbacks",
}


def code_in(text: str) -> str:
    """Return the text in code font and in code blocks, in which paths may be relative to the package."""
    blocks = re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return "\n".join([*blocks, *spans])


def is_file(path: str, *bases: Path) -> bool:
    return any((base / f"{path}{suffix}").exists() for base in bases for suffix in SUFFIXES)


def is_known(path: str, *bases: Path) -> bool:
    """Return whether a path exists, or `module.name` where the module contains the name."""
    if is_file(path, *bases):
        return True
    module, _, name = path.rpartition(".")
    files = [base / f"{module}.py" for base in bases]
    return any(file.exists() and re.search(rf"\b{name}\b", file.read_text()) for file in files if module)


def missing_paths(document: Path) -> Iterator[str]:
    text = document.read_text()
    packages = "|".join(sorted(one.name for one in PACKAGE.iterdir() if one.is_dir()))
    for path in re.findall(rf"(?<![\w./-])(?:{'|'.join(SOURCES)}|docs)/[\w./-]*\w", text):
        if not is_known(path, ROOT):
            yield path
    for path in re.findall(rf"(?<![\w./-])(?:{packages})/[\w./-]*\w", code_in(text)):
        if not is_known(path, PACKAGE, ROOT, document.parent):
            yield path
    for dotted in re.findall(rf"\bheadrace\.(?:{packages})\b(?:\.\w+)*", text):
        module, _, name = dotted.replace(".", "/").rpartition("/")
        if not any(
            is_known(path, ROOT / "src")
            for path in (f"{module}/{name}", f"{module}.{name}", f"{module}/__init__.{name}")
        ):
            yield dotted
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not link.startswith("http") and not (document.parent / link).exists():
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_module_and_link_in_a_document_exists(document: Path) -> None:
    assert sorted(set(missing_paths(document))) == []


def test_anchors_of_links_exist() -> None:
    missing = []
    for document in DOCUMENTS:
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", document.read_text()):
            target = document.parent / link if link else document
            if target.suffix == ".md" and target.exists() and anchor not in anchors_of(target):
                missing.append((document.name, f"{link}#{anchor}"))
    assert missing == []


def anchors_of(document: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


# --- the table of packages


def package_rows() -> dict[str, str]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return dict(re.findall(r"^\| `(\w+)` [▣▢◧] \| (.+) \|$", text, re.MULTILINE))


def expand_braces(name: str) -> list[str]:
    """Expand `sasl/{plain,scram}` to both names."""
    found = re.search(r"\{([^}]*)\}", name)
    if found is None:
        return [name]
    return [
        each
        for part in found[1].split(",")
        for each in expand_braces(name[: found.start()] + part + name[found.end() :])
    ]


def names_in(row: str) -> list[str]:
    spans = [span for span in re.findall(r"`([^`]+)`", row) if span not in NO_MODULES]
    return [name for span in spans for word in span.split() for name in expand_braces(word.rstrip("/"))]


def matches(path: Path, name: str) -> bool:
    return fnmatch.fnmatch(f"/{path}", f"*/{name}") or fnmatch.fnmatch(f"/{path.with_suffix('')}", f"*/{name}")


def test_the_table_of_packages_lists_every_package() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == package_rows().keys()


def test_the_table_of_packages_names_only_modules_that_exist() -> None:
    unknown = []
    for package, row in package_rows().items():
        paths = [path.relative_to(PACKAGE / package) for path in (PACKAGE / package).rglob("*")]
        unknown += [f"{package}: {name}" for name in names_in(row) if not any(matches(path, name) for path in paths)]
    assert unknown == []


def test_the_table_of_packages_names_every_module_or_its_folder() -> None:
    unlisted = []
    for package, row in package_rows().items():
        names = names_in(row)
        for file in (PACKAGE / package).rglob("*.py"):
            path = file.relative_to(PACKAGE / package)
            folders = [folder for folder in path.parents if folder != Path()]
            if file.name != "__init__.py" and not any(matches(one, name) for one in (path, *folders) for name in names):
                unlisted.append(f"{package}: {path}")
    assert unlisted == []


# --- retired words


def words_of(name: str) -> set[str]:
    """Return the words of an identifier: `told_plainly`, `StopAsked` and `DISK_ROOM_MAX` have two or three."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def identifiers(file: Path) -> set[str]:
    with file.open() as lines:
        tokens = tokenize.generate_tokens(lines.readline)
        return {
            token.string for token in tokens if token.type == tokenize.NAME and not token.string.startswith("test_")
        }


@pytest.fixture(scope="module")
def uses() -> dict[str, set[str]]:
    """Return the identifiers that contain a retired word, with their files, by word."""
    found: dict[str, set[str]] = {word: set() for word in RETIRED}
    for file in (file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")):
        where = file.relative_to(ROOT)
        for name in {*identifiers(file), file.stem.removeprefix("test_")}:
            for word in words_of(name) & RETIRED.keys():
                found[word].add(f"{name} in {where}")
    return found


@pytest.mark.parametrize("word", sorted(RETIRED))
def test_a_retired_word_is_no_part_of_an_identifier(uses: dict[str, set[str]], word: str) -> None:
    assert sorted(uses[word]) == [], f"instead of {word!r}: {RETIRED[word]}"
