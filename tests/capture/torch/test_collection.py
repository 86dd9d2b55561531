"""Garbage collection is paused, and never switched on for those who have switched it off."""

from __future__ import annotations

import gc

import pytest

from daceopt.capture.torch.collection import pause, resume


@pytest.fixture(autouse=True)
def _enabled():
    gc.enable()
    yield
    gc.enable()


def test_a_pause_inside_of_a_pause():
    with pause():
        with pause():
            assert not gc.isenabled()
        assert not gc.isenabled()
        with resume():
            assert gc.isenabled()
            with pause():
                assert not gc.isenabled()
            assert gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_the_pause():
    with pytest.raises(ZeroDivisionError), pause(), resume():
        _ = 1 / 0
    assert gc.isenabled()


def test_what_was_off_stays_off():
    gc.disable()
    with pause(), resume():
        assert not gc.isenabled()
    assert not gc.isenabled()
