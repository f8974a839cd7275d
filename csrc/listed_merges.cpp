// Both sides and the result of each merge are looked up by hashes of texts.

#include "listed_merges.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace pellucid {

std::optional<std::vector<ListedMerge>> merges_of_pairs(const TokenTable& tokens,
                                                        const TextList& pairs) {
  std::vector<ListedMerge> merges;
  merges.reserve(pairs.size());
  std::string result;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::string_view pair = pairs[i];
    const std::size_t space = pair.find(' ', 1);
    if (space == std::string_view::npos) return std::nullopt;
    const std::string_view left = pair.substr(0, space), right = pair.substr(space + 1);
    result.assign(left);
    result += right;
    const ListedMerge merge{tokens.find(left), tokens.find(right), tokens.find(result)};
    if (merge.left == TokenTable::kNone || merge.right == TokenTable::kNone ||
        merge.result == TokenTable::kNone) {
      return std::nullopt;
    }
    merges.push_back(merge);
  }
  return merges;
}

}  // namespace pellucid
