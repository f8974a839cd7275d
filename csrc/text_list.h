// Texts one behind the other: a vocabulary has them by the hundred thousand.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pellucid {

class TextList {
 public:
  void reserve(std::size_t count, std::size_t num_bytes) {
    ends_.reserve(count);
    bytes_.reserve(num_bytes);
  }

  void append(std::string_view text) {
    bytes_ += text;
    ends_.push_back(bytes_.size());
  }

  std::size_t size() const { return ends_.size(); }

  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

// Whether this is UTF-8: characters in their shortest form, no surrogates, none above U+10FFFF.
bool is_utf8(std::string_view text);

// Of a text in UTF-8.
std::size_t count_characters(std::string_view text);

}  // namespace pellucid
