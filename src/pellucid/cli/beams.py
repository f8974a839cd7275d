"""Options that make a beam search of a run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import typer

from pellucid.beam_search_params import BeamSearchParams
from pellucid.sampling_params import SamplingParams

BEAM_SEARCH = "Beam search"
_EARLY_STOPPING = {"false": False, "true": True, "never": "never"}


def _option(default: str, **facts: Any) -> Any:
    return typer.Option(rich_help_panel=BEAM_SEARCH, show_default=default, **facts)


@dataclass(frozen=True)
class BeamOptions:
    """Fields of `BeamSearchParams`; None means that it was not given."""

    beam_width: Annotated[
        int | None,
        _option("off", metavar="W", help="Search with this many beams, and draw nothing."),
    ] = None
    length_penalty: Annotated[
        float | None,
        _option("1", metavar="P", help="Above 0 favours long answers, below 0 short ones."),
    ] = None
    early_stopping: Annotated[
        str | None,
        _option(
            "false",
            metavar="false|true|never",
            help="When as many answers are finished as there are beams: docs/beam-search.md.",
        ),
    ] = None

    def search(self, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Fields of `BeamSearchParams`, if a search is asked for.

        Args:
            given: fields of `SamplingParams` that were given besides.

        Raises:
            ValueError: an option has no meaning with the others, or a value is not allowed.
        """
        own = {name: value for name, value in asdict(self).items() if value is not None}
        if self.beam_width is None:
            for name, value in own.items():
                raise ValueError(f"{name}={value!r}: needs --beam-width")
            return None
        known = {field.name for field in fields(BeamSearchParams)}
        for field in fields(SamplingParams):
            value = given.get(field.name, field.default)
            if field.name not in known and value != field.default:
                raise ValueError(
                    f"{field.name}={value!r}: has no meaning for a beam search"
                    f" (beam_width={self.beam_width})"
                )
        if (word := self.early_stopping) is not None:
            if word not in _EARLY_STOPPING:
                raise ValueError(f"early_stopping={word!r}: must be one of false, true, never")
            own["early_stopping"] = _EARLY_STOPPING[word]
        search = {**{name: value for name, value in given.items() if name in known}, **own}
        BeamSearchParams(**search)  # a wrong value is refused before anyone waits for weights
        return search


def beam_search_params(
    search: Mapping[str, Any], model_defaults: SamplingParams
) -> BeamSearchParams:
    """What `BeamOptions.search` gave; the penalty that was not given is the model's own."""
    repetition_penalty = model_defaults.repetition_penalty
    return BeamSearchParams(**{"repetition_penalty": repetition_penalty, **search})
