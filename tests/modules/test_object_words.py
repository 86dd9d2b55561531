"""Words of memory by which CPython tells that an object has changed."""

from __future__ import annotations

import sys

import pytest

from daceopt.modules import object_words
from daceopt.modules.object_words import Words

pytestmark = pytest.mark.skipif(not object_words.are_known(), reason="this Python has them elsewhere")


class _Box:
    pass


def test_known_where_dictionaries_have_versions():
    assert object_words.are_known() or sys.version_info >= (3, 12)


def test_nothing_but_a_write_changes_a_version():
    values = {k: [] for k in range(4)}
    words = Words([object_words.version(values)])
    assert values.get(1) == [] and list(values.items()) and 7 not in values
    values[1].append(2)
    values[2] = values[2]
    assert words.are_unchanged()
    values[2] = []
    assert not words.are_unchanged()


def test_a_version_that_was_does_not_come_again():
    values, one = {}, object()
    words = Words([object_words.version(values)])
    values["a"] = one
    del values["a"]
    assert not words.are_unchanged()


def test_types_and_own_dictionaries():
    box = _Box()
    box.a = 1
    own, address = box.__dict__, object_words.own_dictionary(box)
    assert address is not None
    words = Words([object_words.type_of(box), address])
    assert words.are_unchanged()
    box.__dict__ = dict(own)
    assert not words.are_unchanged()
    words = Words([object_words.type_of(box)])
    box.__class__ = type("Other", (), {})
    assert not words.are_unchanged()


def test_many_words_of_which_one_changes():
    values = [{k: k} for k in range(1000)]
    words = Words([object_words.version(v) for v in values])
    assert words.are_unchanged()
    values[700][1] = 2
    assert not words.are_unchanged()
