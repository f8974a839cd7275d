// Finds the tokens of a vocabulary, and those that are parts of a text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "text_list.h"

namespace pellucid {

// Hashes of texts: polynomials modulo a prime, at a point that each process draws, so that nobody
// can write a file whose tokens share their hashes.
class TextHasher {
  __extension__ typedef unsigned __int128 Product;

 public:
  TextHasher() {
    std::random_device device;
    point_ = ((static_cast<std::uint64_t>(device()) << 29) ^ device()) % (kPrime - 1000) + 500;
  }

  std::uint64_t hash(std::string_view text) const {
    std::uint64_t found = 0;
    for (const char byte : text) found = with_byte(found, byte);
    return found;
  }

  // The hash of a text and a byte behind it.
  std::uint64_t with_byte(std::uint64_t hash, char byte) const {
    return reduce(static_cast<Product>(hash) * point_ + static_cast<unsigned char>(byte) + 1);
  }

  std::uint64_t next_power(std::uint64_t power) const {
    return reduce(static_cast<Product>(power) * point_);
  }

  // The hash of a text without the text that it begins with.
  static std::uint64_t without_beginning(std::uint64_t hash, std::uint64_t beginning,
                                         std::uint64_t power) {
    const std::uint64_t before = reduce(static_cast<Product>(beginning) * power);
    return hash >= before ? hash - before : hash + kPrime - before;
  }

 private:
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

  static std::uint64_t reduce(Product product) {
    std::uint64_t sum =
        static_cast<std::uint64_t>(product & kPrime) + static_cast<std::uint64_t>(product >> 61);
    sum = (sum & kPrime) + (sum >> 61);
    return sum >= kPrime ? sum - kPrime : sum;
  }

  std::uint64_t point_;
};

// Hashes of the parts of one text, each without its bytes.
class PartHashes {
 public:
  explicit PartHashes(const TextHasher& hasher) : hasher_(hasher), powers_{1} {}

  void take(std::string_view text) {
    prefixes_.assign(1, 0);
    for (const char byte : text) prefixes_.push_back(hasher_.with_byte(prefixes_.back(), byte));
    while (powers_.size() < prefixes_.size()) {
      powers_.push_back(hasher_.next_power(powers_.back()));
    }
  }

  // Of the bytes from `begin` to `end`.
  std::uint64_t part(std::size_t begin, std::size_t end) const {
    return TextHasher::without_beginning(prefixes_[end], prefixes_[begin], powers_[end - begin]);
  }

 private:
  const TextHasher& hasher_;
  std::vector<std::uint64_t> powers_;
  std::vector<std::uint64_t> prefixes_;  // of the text up to each byte, from none to all
};

// Finds tokens by their texts. Threads may share it.
class TokenTable {
 public:
  static constexpr std::int32_t kNone = -1;

  // Of those texts that are tokens and not empty; nullptr: all are. `texts` must outlive the table.
  explicit TokenTable(const TextList& texts, const bool* is_token = nullptr) : texts_(texts) {
    std::size_t size = 16;
    while (size < 2 * texts_.size()) size *= 2;
    slots_.assign(size, Slot{0, kNone});
    // Slots are fetched from memory while earlier tokens are added.
    std::array<std::uint64_t, kAhead> hashes{};
    for (std::size_t i = 0; i < texts_.size() + kAhead; ++i) {
      std::uint64_t& hash = hashes[i % kAhead];
      if (i >= kAhead && (is_token == nullptr || is_token[i - kAhead])) add(i - kAhead, hash);
      if (i >= texts_.size()) continue;
      hash = hasher_.hash(texts_[i]);
      __builtin_prefetch(&slots_[first_slot_of(hash)]);
    }
  }

  const TextHasher& hasher() const { return hasher_; }
  std::size_t size() const { return size_; }

  // The first token whose text a later one has, too; kNone: all texts are different.
  std::int32_t repeated() const { return repeated_; }

  // The token with this text; kNone if there is none.
  std::int32_t find(std::string_view text) const { return find(text, hasher_.hash(text)); }
  std::int32_t find(std::string_view text, std::uint64_t hash) const {
    return slots_[slot_of(text, hash)].token;
  }

 private:
  static constexpr std::size_t kAhead = 16;

  struct Slot {
    std::uint32_t tag;  // the lower bits of the hash
    std::int32_t token;
  };

  void add(std::size_t i, std::uint64_t hash) {
    const std::string_view text = texts_[i];
    if (text.empty()) return;
    const auto token = static_cast<std::int32_t>(i);
    Slot& slot = slots_[slot_of(text, hash)];
    if (slot.token == kNone) {
      slot = {static_cast<std::uint32_t>(hash), token};
      ++size_;
    } else {
      repeated_ = repeated_ == kNone ? slot.token : std::min(repeated_, slot.token);
    }
  }

  std::size_t first_slot_of(std::uint64_t hash) const {
    return static_cast<std::size_t>((hash * 0x9E3779B97F4A7C15u) >> 20) & (slots_.size() - 1);
  }

  // Where the token with this text is, or would be.
  std::size_t slot_of(std::string_view text, std::uint64_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = first_slot_of(hash);
    while (slots_[at].token != kNone &&
           (slots_[at].tag != static_cast<std::uint32_t>(hash) ||
            texts_[static_cast<std::size_t>(slots_[at].token)] != text)) {
      at = (at + 1) & mask;
    }
    return at;
  }

  const TextList& texts_;
  TextHasher hasher_;
  std::vector<Slot> slots_;
  std::size_t size_ = 0;
  std::int32_t repeated_ = kNone;
};

}  // namespace pellucid
