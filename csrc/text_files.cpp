// Reads and parses the small text files of /proc and /sys.
#include "text_files.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>

namespace pellucid {
namespace {

constexpr int kMaxCpus = 1 << 16;  // far above any kernel's limit; bounds the cost of a bad file

}  // namespace

std::optional<std::string> read_text_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return std::nullopt;
  return text;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<std::int64_t> parse_int(std::string_view text) {
  text = trim(text);
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_size(std::string_view text) {
  text = trim(text);
  if (text.empty()) return std::nullopt;
  int shift = 0;
  if (text.back() == 'K') shift = 10;
  if (text.back() == 'M') shift = 20;
  if (text.back() == 'G') shift = 30;
  if (shift != 0) text.remove_suffix(1);
  const std::optional<std::int64_t> value = parse_int(text);
  if (!value || *value < 0 || *value > (std::numeric_limits<std::int64_t>::max() >> shift)) {
    return std::nullopt;
  }
  return *value << shift;
}

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  for (const std::string_view part : split(trim(text), ',')) {
    const std::size_t dash = part.find('-');
    const std::optional<std::int64_t> first = parse_int(part.substr(0, dash));
    const std::optional<std::int64_t> last =
        dash == std::string_view::npos ? first : parse_int(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMaxCpus) return std::nullopt;
    for (std::int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

}  // namespace pellucid
