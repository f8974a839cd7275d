// The merges of a vocabulary whose tokens have scores instead of merges (SentencePiece's BPE).
#pragma once

#include <cstdint>
#include <vector>

#include "text_list.h"

namespace pellucid {

// Tokens that merges may make, or only begin with.
struct ScoredTokens {
  const TextList& texts;  // UTF-8
  const double* scores;   // no NaN
  const bool* is_made;    // by merges; others are found as single characters only
};

// The tokens [left] and [right] become the token whose text is both.
struct TokenMerge {
  std::int32_t left;
  std::int32_t right;
};

constexpr int kMaxScoredCharacters = 256;

// Of each token the one merge that makes it, in the order in which merges have precedence: by
// falling scores of what they make; for one score by falling lengths of the left part and of the
// right one, in characters; then as the tokens stand (convert_slow_tokenizer.py of transformers,
// `generate_merges`).
//
// transformers lists every split of a token into two others. At most one of them is ever applied:
// the symbols inside a token that BPE has made were merged with each other alone, so in the order
// in which the token's own text is merged. A token that its own text does not become is never made.
//
// The tokens are different texts of at most kMaxScoredCharacters characters where is_made.
std::vector<TokenMerge> merges_of_scores(const ScoredTokens& tokens);

}  // namespace pellucid
