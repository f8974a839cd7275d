// Pairs of tokens whose joined text is a token are found by hashes of texts.

#include "scored_merges.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>

#include "token_table.h"

namespace pellucid {
namespace {

constexpr std::int32_t kNone = TokenTable::kNone;

// Which of two merges comes first: the smaller one.
struct Precedence {
  std::uint64_t place;  // of the score, then of the lengths
  std::int32_t token;   // that the merge makes; kNone: there is no such merge

  bool operator<(const Precedence& other) const {
    return place != other.place ? place < other.place : token < other.token;
  }
};

constexpr Precedence kNever{~std::uint64_t{0}, kNone};

// A part of a token's text while it is merged.
struct Symbol {
  std::size_t begin;
  std::size_t end;
  int num_characters;
  std::int32_t token;
  Precedence with_next;  // of the merge with the symbol behind it
};

struct OrderedMerge {
  Precedence precedence;
  TokenMerge merge;
};

class Merger {
 public:
  explicit Merger(const ScoredTokens& tokens)
      : tokens_(tokens),
        table_(tokens.texts),
        hashes_(table_.hasher()),
        score_places_(places_of_scores(tokens)) {}

  // Merges the text of a token. Whether it became this token; then `found` is the last merge.
  bool merge(std::int32_t token, OrderedMerge& found) {
    text_ = tokens_.texts[static_cast<std::size_t>(token)];
    hashes_.take(text_);
    if (!split_into_characters()) return false;
    for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) look_up(i);
    while (symbols_.size() > 1) {
      std::size_t first = 0;
      for (std::size_t i = 1; i + 1 < symbols_.size(); ++i) {
        if (symbols_[i].with_next < symbols_[first].with_next) first = i;
      }
      const Precedence precedence = symbols_[first].with_next;
      if (precedence.token == kNone) return false;
      found = {precedence, {symbols_[first].token, symbols_[first + 1].token}};
      join(first);
    }
    return symbols_.front().token == token;
  }

 private:
  // Of each token the place of its score among all scores, the best one first.
  static std::vector<std::uint32_t> places_of_scores(const ScoredTokens& tokens) {
    const std::size_t count = tokens.texts.size();
    std::vector<double> scores(tokens.scores, tokens.scores + count);
    std::sort(scores.begin(), scores.end(), std::greater<>());
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    std::vector<std::uint32_t> places;
    for (std::size_t i = 0; i < count; ++i) {
      const auto at =
          std::lower_bound(scores.begin(), scores.end(), tokens.scores[i], std::greater<>());
      places.push_back(static_cast<std::uint32_t>(at - scores.begin()));
    }
    return places;
  }

  // The token that is the bytes from `begin` to `end` of the text.
  std::int32_t find(std::size_t begin, std::size_t end) const {
    return table_.find(text_.substr(begin, end - begin), hashes_.part(begin, end));
  }

  // Whether each character is a token.
  bool split_into_characters() {
    symbols_.clear();
    for (std::size_t begin = 0; begin < text_.size();) {
      std::size_t end = begin + 1;
      while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) ++end;
      const std::int32_t token = find(begin, end);
      if (token == kNone) return false;
      symbols_.push_back({begin, end, 1, token, kNever});
      begin = end;
    }
    return symbols_.size() > 1;
  }

  // Finds the merge of a symbol with the one behind it.
  void look_up(std::size_t at) {
    Symbol &left = symbols_[at], &right = symbols_[at + 1];
    const std::int32_t token = find(left.begin, right.end);
    left.with_next = kNever;
    if (token == kNone || !tokens_.is_made[static_cast<std::size_t>(token)]) return;
    const auto shorter = [](const Symbol& symbol) {
      return static_cast<std::uint64_t>(kMaxScoredCharacters - symbol.num_characters);
    };
    const std::uint64_t place = score_places_[static_cast<std::size_t>(token)];
    left.with_next = {place << 32 | shorter(left) << 16 | shorter(right), token};
  }

  void join(std::size_t at) {
    Symbol &left = symbols_[at], &right = symbols_[at + 1];
    left = {left.begin, right.end, left.num_characters + right.num_characters, left.with_next.token,
            kNever};
    symbols_.erase(symbols_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    if (at + 1 < symbols_.size()) look_up(at);
    if (at > 0) look_up(at - 1);
  }

  const ScoredTokens& tokens_;
  TokenTable table_;
  PartHashes hashes_;  // of text_
  std::vector<std::uint32_t> score_places_;
  std::string_view text_;
  std::vector<Symbol> symbols_;
};

}  // namespace

std::vector<TokenMerge> merges_of_scores(const ScoredTokens& tokens) {
  Merger merger(tokens);
  std::vector<OrderedMerge> found;
  OrderedMerge last;
  for (std::size_t i = 0; i < tokens.texts.size(); ++i) {
    if (tokens.is_made[i] && merger.merge(static_cast<std::int32_t>(i), last)) {
      found.push_back(last);
    }
  }
  std::sort(found.begin(), found.end(), [](const OrderedMerge& a, const OrderedMerge& b) {
    return a.precedence < b.precedence;
  });
  std::vector<TokenMerge> merges;
  for (const OrderedMerge& each : found) merges.push_back(each.merge);
  return merges;
}

}  // namespace pellucid
