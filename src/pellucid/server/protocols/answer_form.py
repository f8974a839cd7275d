"""How the answers of one request are read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pellucid.inputs.conversation import Tool
from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.generation import Generation
from pellucid.server.protocols.answer_rules import AnswerRule
from pellucid.server.protocols.answers import AnswerBlocks
from pellucid.text.reasoning_tokens import ReasoningTokens
from pellucid.text.tokenizer import Tokenizer

PROMPT_TAIL = 512  # tokens in which the opening of an answer is looked for


@dataclass(frozen=True)
class AnswerForm:
    """How the answers of one request are read.

    Attributes:
        tokenizer: the model's; it has the response format.
        tools: those that the model was offered.
        is_continued: the answer continues a message, which may be long.
        is_plain: all of it is text.
        rule: what the text must be.
        may_call: a text may be a call of a tool.
        keeps_reasoning: reasoning stays in the text, with the texts around it.
    """

    tokenizer: Tokenizer
    tools: Sequence[Tool] | None = None
    is_continued: bool = False
    is_plain: bool = False
    rule: AnswerRule | None = None
    may_call: bool = True
    keeps_reasoning: bool = False

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        prompt: ChatPrompt,
        rule: AnswerRule | None = None,
        *,
        is_plain: bool = False,
        may_call: bool = True,
        keeps_reasoning: bool = False,
    ) -> "AnswerForm":
        has_format = rule is not None and not rule.has_calls
        is_plain = is_plain or has_format or tokenizer.response_format.template is None
        is_continued = prompt.continue_final_message
        return cls(tokenizer, prompt.tools, is_continued, is_plain, rule, may_call, keeps_reasoning)

    @classmethod
    def of_text(cls, tokenizer: Tokenizer, rule: AnswerRule | None) -> "AnswerForm":
        """Of a text without a chat template: the answer continues it, and all of it is text."""
        rule = None if rule is None else replace(rule, begins_anew=False)
        return cls(tokenizer, is_plain=True, rule=rule)

    @property
    def rule_field(self) -> str:
        """See `GenerationRequest`."""
        return "structured_outputs" if self.rule is None else self.rule.field

    def adapt(self, params: SamplingParams) -> SamplingParams:
        """The parameters of these answers.

        They have the rule, and no budget of reasoning where the rule leaves no place for reasoning. Where no tool may
        be called, the tokens that begin a call are forbidden. Special tokens stay in the text where they tell parts of
        an answer apart. Stop strings do not apply to reasoning, which a client does not see as text.
        """
        if self.rule is not None:
            budget = None if self.rule.begins_anew else params.thinking_token_budget
            params = replace(
                params, structured_outputs=self.rule.params, thinking_token_budget=budget
            )
        if self.tools and not self.may_call and (trigger := self._call_trigger()) is not None:
            params = replace(params, bad_words=(*params.bad_words, trigger))
        if not self.is_plain and params.stop:
            params = replace(params, stop_in_reasoning=False)
        if self.is_plain or self.tokenizer.response_format.skip_special_tokens:
            return params
        return replace(params, skip_special_tokens=False)

    def _call_trigger(self) -> str | None:
        """The text that begins a call, if no other text has its tokens: it is one token, or has a special one."""
        answers = self.tokenizer.response_format
        call = answers.call
        if call is None:
            return None
        is_special = any(token in call.trigger for token in answers.special_tokens)
        is_one = len(self.tokenizer.encode(call.trigger, add_special_tokens=False)) == 1
        return call.trigger if is_special or is_one else None

    def blocks(self, generation: Generation) -> AnswerBlocks:
        """The blocks of one answer of a request with one prompt; none yet."""
        answers = self.tokenizer.response_format
        if answers.template is None or (self.rule is not None and not self.rule.has_calls):
            return AnswerBlocks(None)
        text = self._prompt_end(generation)
        marks = answers.reasoning_marks(text)
        parsed = answers.without_reasoning() if self.keeps_reasoning else answers
        return AnswerBlocks(
            None if self.is_plain else parsed.parser(text, self.tools if self.may_call else None),
            None if marks is None else ReasoningTokens(marks, self.tokenizer.token_bytes),
        )

    def _prompt_end(self, generation: Generation) -> str:
        """The text in which the answer may have been begun."""
        if self.rule is not None and self.rule.begins_anew:
            return ""
        token_ids = generation.prompts[0].token_ids
        tail = token_ids if self.is_continued else token_ids[-PROMPT_TAIL:]
        return self.tokenizer.decode(tail, skip_special_tokens=False)
