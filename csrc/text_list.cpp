// Checks and counts the characters of UTF-8.

#include "text_list.h"

#include <algorithm>

namespace pellucid {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// The bytes of the character that a text begins with; 0: it begins with none. The second byte has
// fewer values behind some first ones (Unicode 15, table 3-7).
std::size_t first_character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4 || text.size() < 2) return 0;
  const std::size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const auto second = static_cast<unsigned char>(text[1]);
  const int least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const int most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (text.size() < size || second < least || second > most) return 0;
  const std::string_view others = text.substr(2, size - 2);
  return std::all_of(others.begin(), others.end(), continues) ? size : 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = first_character_bytes(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::size_t count_characters(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::count_if(text.begin(), text.end(), continues));
}

}  // namespace pellucid
