"""What a log shows of a long loop."""

import logging

from distill.progress import Progress, time_left


def test_a_log_counts_up_and_says_the_end_once(caplog, monkeypatch):
    monkeypatch.setattr("distill.progress.SECONDS_BETWEEN_LINES", -1.0)
    with caplog.at_level(logging.INFO), Progress("answering", 3) as progress:
        for _ in range(3):
            progress.advance(1)
    assert caplog.messages == [
        "answering: 1/3, 0:00:00 left",
        "answering: 2/3, 0:00:00 left",
        "answering: 3/3",
    ]


def test_the_time_left_is_what_is_left_at_the_pace_so_far():
    assert time_left(60.0, done=2, left=60) == "0:30:00"
    assert time_left(60.0, done=0, left=60) == "?"
    assert time_left(3600.0, done=0.1, left=0.9) == "9:00:00"


def test_a_loop_of_unknown_length_says_how_far_it_came(caplog):
    with caplog.at_level(logging.INFO), Progress("asking") as progress:
        list(progress.each("ab"))
    assert caplog.messages == ["asking: 2"]


def test_a_loop_that_broke_says_no_end(caplog):
    try:
        with caplog.at_level(logging.INFO), Progress("answering", 3):
            raise KeyError
    except KeyError:
        pass
    assert caplog.messages == []
