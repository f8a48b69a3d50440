"""Every token of a document is predicted once, with the context that lm-evaluation-harness gives it."""

import pytest

from tasks.robustness.evaluate import rolling_windows

LENGTH = 7
END = 999


def harness_windows(tokens: list[int], prefix: int, max_seq_len: int) -> list[tuple[list[int], list[int]]]:
    """(context, predicted) as the harness documents `get_rolling_token_windows` with `context_len=1`, disjoint.

    The first window predicts up to max_seq_len tokens after the prefix token. Each further one predicts the next
    max_seq_len tokens, or the rest, and its input is the max_seq_len tokens that end before its last prediction.
    `make_disjoint_window` then cuts the predictions off the context.
    """
    pairs = []
    done = 0
    while done < len(tokens):
        take = min(max_seq_len, len(tokens) - done)
        end = done + take
        if done == 0:
            inputs = [prefix, *tokens[: end - 1]]
        else:
            inputs = tokens[end - max_seq_len - 1 : end - 1]
        predicted = tokens[done:end]
        pairs.append((inputs[: len(inputs) - (len(predicted) - 1)], predicted))
        done = end
    return pairs


@pytest.mark.parametrize("count", range(5 * LENGTH + 1))
def test_windows_are_those_of_the_harness(count):
    tokens = list(range(count))
    ours = [
        (window.tokens[: -window.scored], window.tokens[-window.scored :])
        for window in rolling_windows(tokens, END, LENGTH)
    ]
    assert ours == harness_windows(tokens, END, LENGTH)


@pytest.mark.parametrize("length", [1, 2, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 6, 7, 8, 13, 14, 15, 35])
def test_each_token_is_scored_once_and_no_window_is_longer_than_the_model_reads(count, length):
    tokens = list(range(count))
    windows = rolling_windows(tokens, END, length)
    assert [token for window in windows for token in window.tokens[-window.scored :]] == tokens
    for window in windows:
        assert 1 <= window.scored < len(window.tokens) <= length + 1


def test_the_last_window_is_filled_up_on_its_left_with_tokens_that_were_scored_before():
    windows = rolling_windows(list(range(10)), END, LENGTH)
    assert windows[0].tokens == [END, 0, 1, 2, 3, 4, 5, 6] and windows[0].scored == 7
    assert windows[1].tokens == [2, 3, 4, 5, 6, 7, 8, 9] and windows[1].scored == 3
