"""Work on several threads and processes: in order, ended at once, errors as errors."""

import os
import signal
import time

import pytest

from slotnorm.data.conversion import in_processes, in_threads
from slotnorm.errors import DamagedFile, UserError


@pytest.mark.parametrize("run", [in_threads, in_processes])
@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_the_items(run, workers):
    items = [0.03, 0.0, 0.02, 0.0, 0.01, 0.0, 0.0]
    assert list(run(abs, [-item for item in items], workers)) == items
    assert list(run(abs, [], workers)) == []


def test_slow_items_do_not_change_the_order():
    def sleepy(item):
        time.sleep(0.02 * (item % 3))
        return item

    assert list(in_threads(sleepy, range(12), 3)) == list(range(12))


@pytest.mark.parametrize("workers", [0, 9])
def test_too_few_or_too_many_workers_are_refused(workers):
    with pytest.raises(UserError, match=f"{workers} workers cannot be used: choose 1 to 8"):
        next(in_processes(abs, [1], workers))


def test_reading_stays_only_a_little_ahead_of_the_work():
    read = []

    def items():
        for number in range(100):
            read.append(number)
            yield number

    results = in_threads(abs, items(), 2)
    next(results)
    assert len(read) <= 6
    results.close()


def test_an_error_of_the_items_ends_the_processes():
    def items():
        yield -1
        yield -2
        raise DamagedFile("the file is damaged")

    with pytest.raises(DamagedFile, match="the file is damaged"):
        list(in_processes(abs, items(), 2))


def test_a_worker_process_that_dies_is_one_sentence():
    with pytest.raises(UserError, match="a worker process ended with code 3"):
        list(in_processes(os._exit, [3], 2))
    with pytest.raises(UserError, match=f"a worker process ended with code -{signal.SIGKILL.value}"):
        list(in_processes(signal.raise_signal, [signal.SIGKILL], 2))


def test_what_a_library_prints_does_not_get_between_the_answers(capfd):
    assert list(in_processes(print, ["noise"], 2)) == [None]
    assert "noise" in capfd.readouterr().err
