// Strings of a file, whose lengths are as little-endian as the machine.

#include "gguf_strings.h"

#include <cstring>
#include <string_view>

namespace pellucid {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);

std::uint64_t length_at(const std::uint8_t* data, std::size_t at) {
  std::uint64_t length;
  std::memcpy(&length, data + at, kLengthBytes);
  return length;
}

}  // namespace

PassedStrings pass_strings(const std::uint8_t* data, std::size_t begin, std::size_t count,
                           std::size_t limit) {
  PassedStrings passed{0, begin};
  while (passed.count < count && limit - passed.end >= kLengthBytes) {
    const std::uint64_t length = length_at(data, passed.end);
    if (length > limit - passed.end - kLengthBytes) break;
    passed.end += kLengthBytes + length;
    ++passed.count;
  }
  return passed;
}

TextList read_strings(const std::uint8_t* data, std::size_t begin, PassedStrings passed) {
  TextList texts;
  texts.reserve(passed.count, passed.end - begin - passed.count * kLengthBytes);
  for (std::size_t at = begin; at < passed.end;) {
    const std::uint64_t length = length_at(data, at);
    at += kLengthBytes;
    texts.append({reinterpret_cast<const char*>(data + at), length});
    at += length;
  }
  return texts;
}

}  // namespace pellucid
