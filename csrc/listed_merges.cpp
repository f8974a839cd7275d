// Both sides and the result of each merge are looked up by hashes of texts.

#include "listed_merges.h"

#include <cstddef>
#include <string>

#include "token_table.h"

namespace pellucid {

std::optional<std::vector<ListedMerge>> merges_of_pairs(
    const std::vector<std::string_view>& tokens, const std::vector<std::string_view>& pairs) {
  TokenTable table(tokens);
  std::vector<ListedMerge> merges;
  std::string result;
  std::vector<std::uint64_t> prefixes;
  for (const std::string_view pair : pairs) {
    const std::size_t space = pair.find(' ', 1);
    if (space == std::string_view::npos) return std::nullopt;
    result.assign(pair.substr(0, space));
    result += pair.substr(space + 1);
    table.hash(result, prefixes);
    const ListedMerge merge{table.find(result, prefixes, 0, space),
                            table.find(result, prefixes, space, result.size()),
                            table.find(result, prefixes, 0, result.size())};
    if (merge.left == TokenTable::kNone || merge.right == TokenTable::kNone ||
        merge.result == TokenTable::kNone) {
      return std::nullopt;
    }
    merges.push_back(merge);
  }
  return merges;
}

}  // namespace pellucid
