"""Stop strings: has the text of a response come to hold one?"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_SLACK_TOKENS = 5
"""Decoding from the middle can garble what comes first: a cut multi-byte character (4 bytes at most) or a
leading space."""


class StopStrings:
    """Watches the responses of one batch. Costs one decode of a few tokens a row and step.

    Only the tail of a response is decoded: a stop string that appears with a new token ends in it, and
    a token is never less than a byte of text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str], num_rows: int) -> None:
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        self._invisible = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        self._window = max((len(text.encode()) for text in strings), default=0) + _SLACK_TOKENS
        self._tails: list[list[int]] = [[] for _ in range(num_rows)]

    def push(self, rows: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """Append one token to each of `rows`; true where a stop string now stands in the text."""
        if not self._strings:
            return [False] * len(rows)
        for row, token in zip(rows, tokens, strict=True):
            if token not in self._invisible:
                self._tails[row] = [*self._tails[row][1 - self._window :], token]
        texts = decode(self._tokenizer, [self._tails[row] for row in rows])
        return [any(stop in text for stop in self._strings) for text in texts]


def decode(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]]) -> list[str]:
    """Texts of token rows, special tokens left out and spaces as the model wrote them."""
    return tokenizer.batch_decode(
        [list(row) for row in rows], skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
