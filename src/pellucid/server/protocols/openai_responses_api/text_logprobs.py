"""The log-probabilities of the tokens in the texts of a response."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pellucid.outputs import CompletionDelta
from pellucid.server.generation import Generation
from pellucid.server.protocols.answers import AnswerBlocks, BlockEvent, BlockKind, Change
from pellucid.server.protocols.logprobs import TokenLogprob, token_logprobs
from pellucid.text.detokenizer import IncrementalDetokenizer
from pellucid.text.tokenizer import Tokenizer


class TextLogprobs:
    """The log-probabilities of the tokens in the texts of one answer, without those of reasoning and of calls.

    Args:
        tokenizer: the model's.
        generation: whose answer it is.

    Attributes:
        of_block: by the index of a text.
    """

    def __init__(self, tokenizer: Tokenizer, generation: Generation) -> None:
        params = generation.request.params
        prompt_token_ids = generation.prompts[0].token_ids
        self.of_block: dict[int, list[TokenLogprob]] = defaultdict(list)
        self._tokenizer = tokenizer
        self._num_top = params.logprobs or 0
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_token_ids, params.skip_special_tokens
        )
        self._held: list[tuple[str, TokenLogprob]] = []  # of tokens whose text is held back

    def read(
        self, delta: CompletionDelta, blocks: AnswerBlocks
    ) -> list[tuple[BlockEvent, Sequence[TokenLogprob]]]:
        """Has `blocks` read a delta token by token.

        Returns:
            What it changes; with added text, the log-probabilities of the tokens that brought it.
        """
        found: list[tuple[BlockEvent, Sequence[TokenLogprob]]] = []
        for token in self._tokens(delta):
            self._held += (
                (token.text, written)
                for written in token_logprobs(
                    self._tokenizer, token.token_ids, token.logprobs or (), self._num_top
                )
            )
            events = blocks.read(token)
            for event in events:
                logprobs: Sequence[TokenLogprob] = ()
                if event.change is Change.GREW and event.block.kind is BlockKind.TEXT:
                    logprobs = self._take(len(event.text))
                    self.of_block[event.block.index] += logprobs
                found.append((event, logprobs))
            if events:
                self._held = []
        return found

    def _take(self, num_chars: int) -> list[TokenLogprob]:
        """Those of the latest tokens that have so many characters, and of the parts of characters before these."""
        taken: list[TokenLogprob] = []
        while self._held and (num_chars > 0 or not self._held[-1][0]):
            text, logprob = self._held.pop()
            num_chars -= len(text)
            taken.append(logprob)
        return taken[::-1]

    def _tokens(self, delta: CompletionDelta) -> list[CompletionDelta]:
        """One delta for each token, with the text that it adds; the last one has the end of the answer. The answer has
        no stop strings."""
        if not delta.token_ids:
            return [delta]
        found = []
        last = len(delta.token_ids) - 1
        for place, token_id in enumerate(delta.token_ids):
            is_end = place == last and delta.finish_reason is not None
            # The text of the token that ended the answer is not shown
            is_shown = not is_end or delta.stop_reason != token_id
            text = self._detokenizer.push(token_id) if is_shown else ""
            found.append(
                CompletionDelta(
                    delta.request_id,
                    delta.index,
                    text + self._detokenizer.flush() if is_end else text,
                    [token_id],
                    None if delta.logprobs is None else [delta.logprobs[place]],
                    finish_reason=None,
                    stop_reason=None,
                )
            )
        found[-1] = replace(
            found[-1], finish_reason=delta.finish_reason, stop_reason=delta.stop_reason
        )
        return found
