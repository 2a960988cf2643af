"""What a log shows of a long loop."""

import logging

from distill.data.progress import Progress


def test_a_log_counts_up_and_says_the_end_once(caplog, monkeypatch):
    monkeypatch.setattr("distill.data.progress.SECONDS_BETWEEN_LINES", -1.0)
    with caplog.at_level(logging.INFO), Progress("answering", 3) as progress:
        for _ in range(3):
            progress.advance(1)
    assert caplog.messages == ["answering: 1/3", "answering: 2/3", "answering: 3/3"]


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
