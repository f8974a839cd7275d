// The merges that a vocabulary lists as texts (byte-level BPE).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "text_list.h"
#include "token_table.h"

namespace pellucid {

// The tokens [left] and [right] become the token [result].
struct ListedMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

// The merges that `pairs` stand for, each two sides with a space between them; a side may begin
// with a space, so the space is the first one behind a pair's first character. None if a pair has
// no space, or a side or a result is no token. All texts are UTF-8.
std::optional<std::vector<ListedMerge>> merges_of_pairs(const TokenTable& tokens,
                                                        const TextList& pairs);

}  // namespace pellucid
