"""The thread pool: every unit once, phases in order, more threads than CPUs, forks."""

import multiprocessing
import os

import numpy as np
import pytest

native = pytest.importorskip("octavo._native", reason="the native module is not built")


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("units", [1, 2, 7, 100])
def test_every_unit_runs_once_and_phases_follow_each_other(threads: int, units: int) -> None:
    """A unit checks that the phase before it is complete: a missing barrier adds a million."""
    hits = np.zeros((20, units), np.int32)
    native.pool_walk(threads, threads, 20, 5, hits)
    np.testing.assert_array_equal(hits, 5)


def test_more_threads_than_cpus_finish() -> None:
    hits = np.zeros((40, 64), np.int32)
    native.pool_walk(8, 2, 40, 20, hits)
    np.testing.assert_array_equal(hits, 20)


def test_no_units_at_all() -> None:
    hits = np.zeros((4, 0), np.int32)
    native.pool_walk(2, 2, 4, 2, hits)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_nested_run_is_refused(threads: int) -> None:
    assert native.pool_refuses_nesting(threads)


def _walk_in_child(connection) -> None:
    hits = np.zeros((4, 8), np.int32)
    native.pool_walk(2, 2, 4, 3, hits)
    connection.send(bool((hits == 3).all()))
    connection.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_pool_starts_anew_after_a_fork() -> None:
    hits = np.zeros((4, 8), np.int32)
    native.pool_walk(2, 2, 4, 1, hits)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_walk_in_child, args=(theirs,))
    child.start()
    assert ours.poll(30), "the child hangs"
    assert ours.recv()
    child.join()
    assert child.exitcode == 0
