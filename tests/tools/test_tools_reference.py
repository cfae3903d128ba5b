"""The API reference: the committed pages match the docstrings, and the generator reads a sample source."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.reference.__main__ import FOLDER, SOURCES, differing, main, rendered, write
from tools.reference.extract import entry
from tools.reference.markdown import render
from tools.reference.model import Alias, Attribute, Class, ClassKind, Fixture, Function, Signature
from tools.reference.pages import CLIENT, PIPELINES, Page, Section
from tools.reference.sources import NotFound, Sources, public_names

LIMITS = """\
WAIT_S = 2.5
NO_LIMIT = make_limit(1, unit="s")
"""

SHOP = '''\
"""A module."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, overload

import pytest

from shop.limits import NO_LIMIT, WAIT_S

if TYPE_CHECKING:
    from elsewhere import Price

# From an order to its price.
Pricing = Callable[[int], "Price"]


class Size(Enum):
    SMALL = "s"  # fits into a letter box
    LARGE = "l"


class Line(NamedTuple):
    """A line of an order; `of` is the item."""

    of: str
    count: int = 1  # pieces


@dataclass(frozen=True, kw_only=True)
class Order:
    lines: list[Line] = field(default_factory=list)
    size: Size = Size.SMALL


class Shop(dict[str, Order]):
    """A shop that sells between `open` and `close`, with <angles> and * stars."""

    def __init__(self, name: str, /, wait_s: float = WAIT_S, *, limit: int = NO_LIMIT, **rest: int) -> None:
        """Prepare a shop; see `Order`."""
        self.name = name
        self.till: list[int] = []  # one number per sale
        self.count = 0
        self._hidden = rest

    def __enter__(self) -> "Shop": ...
    def __iter__(self) -> Iterator[Order]:
        """Yield the orders."""

    def open(self) -> None:
        """Open the shop until `close`."""

    async def close(self, open: bool = False) -> None:
        """Close the shop; `open` is a parameter here."""

    @property
    def is_open(self) -> bool:
        return True

    @staticmethod
    def parse(text: str, separator=",") -> "Shop": ...
    @overload
    def sell(self, one: Order) -> int: ...
    @overload
    def sell(self, *many: Order) -> list[int]: ...
    def sell(self, *many: Order) -> object:
        """Sell orders."""

    def _count(self) -> int: ...


def opening(hours: tuple[int, int] = (9, 17), clock: object = Clock().now) -> None:
    """Say when it opens.

    It closes later.
    """


@pytest.fixture(scope="session")
def a_shop() -> Iterator[Shop]:
    """Open one shop."""
'''


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text(
        'from shop.goods import Shop as Store, opening\n__all__ = ["Store", "opening"]\n'
    )
    (package / "limits.py").write_text(LIMITS)
    (package / "goods.py").write_text(SHOP)
    return Sources(tmp_path)


def class_of(sources: Sources, name: str) -> Class:
    found = entry(sources, "shop.goods", name)
    assert isinstance(found, Class)
    return found


def methods_of(sources: Sources, name: str) -> dict[str, Function]:
    return {method.name: method for method in class_of(sources, name).methods}


# --- the committed pages


def test_the_reference_matches_the_docstrings() -> None:
    assert differing(FOLDER, rendered()) == [], "run `make docs`"


def test_the_reference_has_no_other_files() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(rendered())


@pytest.mark.parametrize(
    ("page", "module"), [(CLIENT, "headrace.client"), (PIPELINES, "headrace.pipelines.definitions")]
)
def test_every_exported_name_is_on_its_page(page: Page, module: str) -> None:
    assert page.names_from(module) == set(public_names(Sources(SOURCES).module(module)))


def test_checking_reports_files_that_are_missing_or_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], tmp_path) == 1
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    (tmp_path / "client.md").write_text("changed by hand\n")
    capsys.readouterr()
    assert main(["--check"], tmp_path) == 1
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1 and "client.md" in reported[0]


def test_only_files_that_differ_are_written(tmp_path: Path) -> None:
    assert write(tmp_path, {"a.md": "a", "b.md": "b"}) == ["a.md", "b.md"]
    assert write(tmp_path, {"a.md": "a", "b.md": "c"}) == ["b.md"]
    assert (tmp_path / "b.md").read_text() == "c"


# --- signatures


def test_a_short_signature_is_one_line_and_a_long_one_has_a_line_per_parameter() -> None:
    assert str(Signature("get", ("a: int", "b: int = 1"), "str", "async")) == "async get(a: int, b: int = 1) -> str"
    long = Signature("get", ("a" * 60, "b" * 60), "str")
    assert str(long) == f"get(\n    {'a' * 60},\n    {'b' * 60},\n) -> str"


def test_parameters_keep_their_kinds_and_constants_are_shown_by_value(sources: Sources) -> None:
    shop = class_of(sources, "Shop")
    assert shop.signature.parameters == (
        "name: str",
        "/",
        "wait_s: float = 2.5",
        "*",
        "limit: int = NO_LIMIT",
        "**rest: int",
    )


def test_a_default_that_has_to_be_computed_is_hidden(sources: Sources) -> None:
    found = entry(sources, "shop.goods", "opening")
    assert isinstance(found, Function)
    assert found.signatures[0].parameters == ("hours: tuple[int, int] = (9, 17)", "clock: object = ...")
    assert found.doc == "Say when it opens.\n\nIt closes later."


def test_overloads_replace_the_signature_of_the_implementation(sources: Sources) -> None:
    sell = methods_of(sources, "Shop")["sell"]
    assert [str(one) for one in sell.signatures] == ["sell(one: Order) -> int", "sell(*many: Order) -> list[int]"]
    assert sell.doc == "Sell orders."


# --- classes


def test_public_methods_are_listed_in_source_order(sources: Sources) -> None:
    methods = methods_of(sources, "Shop")
    assert list(methods) == ["__iter__", "open", "close", "is_open", "parse", "sell"]
    assert str(methods["close"].signatures[0]) == "async close(open: bool = False) -> None"
    assert str(methods["is_open"].signatures[0]) == "property is_open: bool"
    assert str(methods["parse"].signatures[0]) == 'static parse(text: str, separator=",") -> "Shop"'


def test_attributes_set_in_the_constructor_are_listed(sources: Sources) -> None:
    shop = class_of(sources, "Shop")
    assert shop.bases == ("dict[str, Order]",)
    assert shop.with_statements == ("with",)
    assert shop.attributes == (
        Attribute("name", "str"),
        Attribute("till", "list[int]", comment="one number per sale"),
        Attribute("count", "int"),
    )


def test_fields_become_the_parameters_of_named_tuples_and_dataclasses(sources: Sources) -> None:
    line, order = class_of(sources, "Line"), class_of(sources, "Order")
    assert (line.kind, line.bases) == (ClassKind.NAMED_TUPLE, ())
    assert str(line.signature) == "class Line(of: str, count: int = 1)"
    assert line.attributes[1] == Attribute("count", "int", comment="pieces")
    assert order.kind is ClassKind.DATACLASS
    assert str(order.signature) == "class Order(*, lines: list[Line] = [], size: Size = Size.SMALL)"


def test_enum_members_are_listed_with_values_and_comments(sources: Sources) -> None:
    size = class_of(sources, "Size")
    assert size.attributes == (
        Attribute("SMALL", value='"s"', comment="fits into a letter box"),
        Attribute("LARGE", value='"l"'),
    )


# --- other entries


def test_an_alias_is_documented_by_the_comment_above_it(sources: Sources) -> None:
    assert entry(sources, "shop.goods", "Pricing") == Alias(
        "Pricing", 'Callable[[int], "Price"]', "From an order to its price."
    )


def test_a_fixture_is_listed_with_its_scope_and_yielded_type(sources: Sources) -> None:
    assert entry(sources, "shop.goods", "a_shop") == Fixture("a_shop", "Shop", "session", "Open one shop.")


def test_imported_names_are_resolved_to_their_module(sources: Sources) -> None:
    assert sources.find("shop", "Store").module.name == "shop.goods"
    assert public_names(sources.module("shop")) == ["Store", "opening"]


@pytest.mark.parametrize(("module", "name"), [("shop", "Absent"), ("shop.absent", "Shop"), ("shop.goods", "Price")])
def test_a_name_missing_from_the_sources_raises_not_found(sources: Sources, module: str, name: str) -> None:
    with pytest.raises(NotFound):
        entry(sources, module, name)


# --- pages


def page_of(*names: str, returned: str = "") -> Page:
    section = Section("All of it", {"shop.goods": names}, "See `Shop`.", frozenset({returned}))
    return Page("shop.md", "Shop reference", "What it sells.", (section,))


def test_a_page_links_names_to_their_entries(sources: Sources) -> None:
    lines = render(sources, page_of("Shop", "Order")).splitlines()
    assert "- All of it: [`Shop`](#shop), [`Order`](#order)" in lines
    assert "See [`Shop`](#shop)." in lines
    assert "from shop.goods import Shop, Order" in lines
    assert "Prepare a shop; see [`Order`](#order)." in lines
    assert "Open the shop until [`close`](#shopclose)." in lines
    assert "Close the shop; `open` is a parameter here." in lines


def test_text_that_markdown_would_interpret_is_escaped(sources: Sources) -> None:
    text = render(sources, page_of("Shop"))
    assert r"with \<angles> and \* stars." in text


def test_headings_that_differ_only_in_case_have_numbered_anchors(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text("def run() -> None: ...\nclass Run: ...\n")
    page = Page("cases.md", "Cases", "", (Section("Two", {"cases": ("run", "Run")}),))
    assert "- Two: [`run`](#run), [`Run`](#run-1)" in render(sources, page)


def test_fields_without_a_comment_are_only_in_the_signature(sources: Sources) -> None:
    text = render(sources, page_of("Line", "Size"))
    assert "- `count`: pieces" in text and "- `of`" not in text
    assert '- `LARGE = "l"`' in text


def test_a_class_marked_as_returned_is_shown_without_its_constructor(sources: Sources) -> None:
    text = render(sources, page_of("Shop", returned="Shop"))
    assert "```python\nclass Shop\n```" in text


def test_fixtures_have_no_import_line(sources: Sources) -> None:
    text = render(sources, page_of("a_shop"))
    assert "A fixture of type `Shop`, scope `session`." in text
    assert "import" not in text
