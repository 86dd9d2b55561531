"""docs/architecture.md and the pages of docs/rooms: short, complete, and about files, names and records that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_import_layers import CODE, FLOORS, ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = sorted((ROOT / "docs" / "rooms").glob("*.md"))
DOCUMENTS = [ARCHITECTURE, *PAGES]
LINKED = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "extending").glob("*.md"))]
MOST_WORDS, MOST_WORDS_OF_A_PAGE = 5000, 1200

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./*-]+\.(?:py|cpp|h)\b")
FOLDER = re.compile(r"(?:[\w.-]+/)+(?=$|[\s:])")
IDENTIFIER = re.compile(r"[A-Za-z_][\w-]+\w")
USE = re.compile(r"\w+(?=\()|(?<=\.)\w+")  # in blocks: what is called, and attributes
CALL = re.compile(r"(?<!nn\.)\b(?!daceopt_)([A-Za-z_]\w+)\(")  # but PyTorch's modules, and what libraries export
PLACE = re.compile(r"([\w./]+\.py): ([A-Za-z_]\w+)")  # a file, and what it defines
DEFINITION = re.compile(r"\b(?:def|class) (\w+)|\"(\w+)\"|^ *(\w+)(?:: [\w.\[\], ]+)? =", re.MULTILINE)
PARAMETRIZED = [pytest.param(path, id=path.stem) for path in DOCUMENTS]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _spans(path: Path) -> list[str]:
    """What stands between backticks, outside of blocks."""
    return CODE_SPAN.findall(FENCE.sub("", _text(path)))


def _rooms(path: Path) -> list[str]:
    """The folders of code that a page is about: the first sentence of its line ``Code:``."""
    lines = [line for line in _text(path).splitlines() if line.startswith("Code: ")]
    return [span.rstrip("/") for line in lines for span in CODE_SPAN.findall(line.split(". ")[0])]


def _exists(name: str, path: Path) -> bool:
    """Is there a file or folder ``name``, from the repository, the package or one of the page's rooms?"""
    folders = [ROOT, ROOT / "daceopt", *(ROOT / room for room in _rooms(path))]
    return any(next(folder.glob(name), None) is not None for folder in folders)


@cache
def _words_of_code() -> frozenset[str]:
    """All words of the code and of its file names."""
    files = [p for folder in (*CODE, "tests") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".h", ".cpp")]
    return frozenset(word for p in files for word in re.findall(r"\w+", f"{p.relative_to(ROOT)} {_text(p)}"))


def _slugs(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _text(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken_links(path: Path) -> Iterator[str]:
    for target, anchor in LINK.findall(_text(path)):
        if target.startswith("http"):
            continue
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or (anchor and anchor not in _slugs(file)):
            yield f"{target}#{anchor}" if anchor else target


def _identifiers(path: Path) -> Iterator[str]:
    """Words in code spans, and what blocks of Python use, comments apart."""
    blocks = [code for language, code in FENCE.findall(_text(path)) if language == "python"]
    yield from (word for span in _spans(path) for word in IDENTIFIER.findall(span))
    yield from (word for code in blocks for word in USE.findall(re.sub(r"#.*|\"[^\"]*\"", "", code)))


def _names_of(text: str) -> set[str]:
    """What a file defines: functions, classes, variables, and what it has by name in a table."""
    return {name for names in DEFINITION.findall(text) for name in names if name}


@cache
def _definitions() -> frozenset[str]:
    """What can be called: definitions of Python, and all names of C++."""
    files = [p for folder in CODE for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".h", ".cpp")]
    return frozenset(
        name for p in files for name in (_names_of(_text(p)) if p.suffix == ".py" else re.findall(r"\w+", _text(p)))
    )


def _calls(path: Path) -> Iterator[str]:
    """What is called in code spans and in blocks of Python."""
    blocks = [code for language, code in FENCE.findall(_text(path)) if language == "python"]
    for text in (*_spans(path), *(re.sub(r"#.*|\"[^\"]*\"", "", code) for code in blocks)):
        yield from CALL.findall(text)


def _misplaced_names(path: Path) -> Iterator[str]:
    """Names that are not defined in the file that they are said to be in."""
    folders = [ROOT, ROOT / "daceopt", *(ROOT / room for room in _rooms(path))]
    for span in _spans(path):
        for file, name in PLACE.findall(span):
            files = [at for folder in folders if (at := folder / file).exists()]
            if not any(name in _names_of(_text(at)) for at in files):
                yield f"{file}: {name}"


def _occurs(word: str) -> bool:
    """Is it a word of the code: as it is, as a step that recipes spell with hyphens, or each of its words?"""
    known = _words_of_code()
    return word.replace("-", "_") in known or all(part in known for part in re.findall(r"\w+", word))


def _floors_of_picture() -> list[list[str]]:
    """The rooms on each line of the picture, from the ground up."""
    (picture,) = (code for language, code in FENCE.findall(_text(ARCHITECTURE)) if language == "floors")
    return [line.partition("|")[0].split() for line in reversed(picture.splitlines())]


def test_documents_are_short() -> None:
    words = {path.name: len(_text(path).split()) for path in DOCUMENTS}
    most = {path.name: MOST_WORDS if path == ARCHITECTURE else MOST_WORDS_OF_A_PAGE for path in DOCUMENTS}
    assert not {name: count for name, count in words.items() if count > most[name]}


def test_the_picture_has_all_floors() -> None:
    assert [sorted(rooms) for rooms in _floors_of_picture()] == [sorted(rooms.split()) for rooms in FLOORS]


def test_the_walk_goes_down_through_few_rooms() -> None:
    (listed,) = re.findall(r"the picture below they are: ([^.]*)\.", _text(ARCHITECTURE))
    floor = {room: k for k, rooms in enumerate(FLOORS) for room in rooms.split()}
    floors = [floor[room.strip()] for room in listed.split(",")]
    assert len(floors) <= 12 and floors == sorted(set(floors), reverse=True)


def test_each_room_has_a_page() -> None:
    pages = {room for path in PAGES for room in _rooms(path)}
    rooms = [room for floor in FLOORS for room in floor.split()]
    folders = {f"daceopt/{room.replace('.', '/')}" for room in rooms} | {"recipes", "transformations"}
    folders -= {"daceopt/recipes", "daceopt/transformations"}
    assert not sorted(folder for folder in folders if (ROOT / folder).is_dir() and folder not in pages)


def test_architecture_links_all_pages() -> None:
    linked = {target for target, _ in LINK.findall(_text(ARCHITECTURE))}
    assert not [path.name for path in PAGES if f"rooms/{path.name}" not in linked]


def test_the_site_lists_all_pages() -> None:
    navigation = _text(ROOT / "mkdocs.yml")
    assert not [path.name for path in PAGES if f"rooms/{path.name}" not in navigation]


@pytest.mark.parametrize("path", LINKED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    assert not list(_broken_links(path))


@pytest.mark.parametrize("path", PARAMETRIZED)
def test_files_and_folders_exist(path: Path) -> None:
    names = {name for span in _spans(path) for pattern in (FILE, FOLDER) for name in pattern.findall(span)}
    assert not sorted(name for name in names if not _exists(name, path))


@pytest.mark.parametrize("path", PARAMETRIZED)
def test_names_occur_in_the_code(path: Path) -> None:
    assert not sorted(word for word in set(_identifiers(path)) if not _occurs(word))


@pytest.mark.parametrize("path", PARAMETRIZED)
def test_what_is_called_is_defined(path: Path) -> None:
    assert not sorted(set(_calls(path)) - _definitions())


@pytest.mark.parametrize("path", PARAMETRIZED)
def test_names_are_defined_in_their_files(path: Path) -> None:
    assert not sorted(set(_misplaced_names(path)))


def test_a_file_that_is_gone_is_told() -> None:
    assert _exists("pipeline.py", ARCHITECTURE)
    assert not _exists("gone.py", ARCHITECTURE)
    assert not _exists("no_room/", ARCHITECTURE)
