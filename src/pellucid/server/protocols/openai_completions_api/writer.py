"""Writes one choice of a completion, whole or in parts."""

import codecs
from collections.abc import Callable, Sequence

import msgspec

from pellucid.outputs import CompletionDelta, LogprobsAt, RequestOutput
from pellucid.server.generation import Generation
from pellucid.server.protocols.ask import Ask
from pellucid.server.protocols.logprobs import token_name
from pellucid.server.protocols.openai_completions_api.fields import CompletionBody
from pellucid.server.protocols.openai_completions_api.reply_objects import Logprobs, TextChoice
from pellucid.server.protocols.openai_shared.endings import openai_finish_reason, shown_stop_reason
from pellucid.server.protocols.openai_shared.writer import ChoiceWriter
from pellucid.server.streaming import TextChunks, TextTemplate
from pellucid.text.tokenizer import Tokenizer


class TextChoiceWriter(ChoiceWriter[CompletionBody]):
    """Writes one choice, whole or in parts."""

    def __init__(
        self, number: int, ask: Ask[CompletionBody], output: RequestOutput, generation: Generation
    ) -> None:
        super().__init__(number, ask, output)
        body = ask.body
        self._prompt_only = body.is_prompt_only
        self._offsets = _TextOffsets(self._tokenizer, body.skip_special_tokens is not False)
        self._has_logprobs = body.num_logprobs is not None
        self._has_equal_frames = not self._has_logprobs and body.has_equal_frames
        self._text_chunks: TextChunks | None = None
        self._num_tokens = 0  # of the deltas without those of `_text_chunks`

    @property
    def num_tokens(self) -> int:
        return self._num_tokens + (0 if self._text_chunks is None else self._text_chunks.num_tokens)

    def part(self, delta: CompletionDelta, frame: Callable[[msgspec.Struct], bytes]) -> bytes:
        return frame(self.whole(delta))

    def text_chunks(self, frame: Callable[[msgspec.Struct], bytes]) -> TextChunks | None:
        if not self._has_equal_frames or self._is_first:
            return None
        if self._text_chunks is None:
            self._text_chunks = TextChunks(frame(TextChoice(self._number, TextTemplate.PLACE)))
        return self._text_chunks

    def whole(self, delta: CompletionDelta) -> TextChoice:
        """What a delta adds; the first one brings the prompt, if it is to be echoed."""
        is_first = self._is_first
        echoes = is_first and bool(self._body.echo)
        output = self._output
        offsets: list[int] = []
        token_ids: list[int] = []
        logprobs: list[LogprobsAt | None] = []
        text = ""
        if is_first and self._has_logprobs:  # OpenAI counts a prompt that is not echoed, too
            of_prompt = self._offsets.of_prompt(output.prompt_token_ids, output.prompt)
            offsets = of_prompt if echoes else []
        if echoes:
            text = self._prompt_text()
            token_ids += output.prompt_token_ids
            logprobs += output.prompt_logprobs or []
        if not self._prompt_only:
            text += delta.text
            token_ids += delta.token_ids
            logprobs += delta.logprobs or []
            self._num_tokens += len(delta.token_ids)
        choice = TextChoice(self._number, text)
        if self._has_logprobs:
            choice.logprobs = self._logprobs(offsets, token_ids, logprobs)
        if delta.finish_reason is not None:
            choice.finish_reason = openai_finish_reason(delta.finish_reason)
            choice.stop_reason = shown_stop_reason(delta.finish_reason, delta.stop_reason)
            if self._prompt_only:
                choice.finish_reason, choice.stop_reason = "length", None
        self._add_tokens(choice, [] if self._prompt_only else delta.token_ids)
        self._is_first = False
        return choice

    def _prompt_text(self) -> str:
        if self._output.prompt is not None:
            return self._output.prompt
        skip = self._body.skip_special_tokens is not False
        return self._tokenizer.decode(self._output.prompt_token_ids, skip)

    def _logprobs(
        self, offsets: list[int], token_ids: list[int], logprobs: list[LogprobsAt | None]
    ) -> Logprobs:
        offsets += map(self._offsets.next, token_ids[len(offsets) :])
        written = Logprobs(offsets, [], [], [])
        for token_id, at in zip(token_ids, logprobs, strict=True):
            if at is None:  # before the first token there is nothing that could predict it
                text = self._tokenizer.token_text(token_id)
                written.tokens.append(
                    token_name(token_id, text, self._body.return_tokens_as_token_ids)
                )
                written.token_logprobs.append(None)
                written.top_logprobs.append(None)
            else:
                by_id = self._body.return_tokens_as_token_ids
                written.tokens.append(token_name(token_id, at[token_id].decoded_token, by_id))
                written.token_logprobs.append(at[token_id].logprob)
                written.top_logprobs.append(
                    {f"token_id:{each}": entry.logprob for each, entry in at.items()}
                    if by_id
                    else _by_text(token_id, at)
                )
        return written


def _by_text(chosen_id: int, at: LogprobsAt) -> dict[str, float]:
    """Log-probabilities by the tokens' texts. Of tokens with the same text the chosen one has it, or
    else the likeliest; the others are called token_id:N, so that none is lost."""
    named = {at[chosen_id].decoded_token: chosen_id}
    for token_id, entry in at.items():
        named.setdefault(entry.decoded_token, token_id)
    return {
        entry.decoded_token
        if named[entry.decoded_token] == token_id
        else f"token_id:{token_id}": entry.logprob
        for token_id, entry in at.items()
    }


class _TextOffsets:
    """Where in the text each token begins, in characters."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._shows_special = not skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes = tokenizer.first_token_bytes
        self._offset = 0

    def next(self, token_id: int, sent: str | None = None) -> int:
        """Where a token begins that follows those before; of a prompt that was sent as text, in this text."""
        offset = self._offset
        if token_id not in self._tokenizer.special_token_ids:
            is_shown = True
        elif sent is None:
            is_shown = self._shows_special
        else:  # what the tokenizer adds is not there
            is_shown = sent.startswith(self._tokenizer.token_text(token_id), offset)
        if is_shown:
            self._offset += len(self._utf8.decode(self._bytes(token_id)))
            self._bytes = self._tokenizer.token_bytes
        return offset

    def of_prompt(self, token_ids: Sequence[int], sent: str | None) -> list[int]:
        return [self.next(token_id, sent) for token_id in token_ids]
