// Reads and parses the small text files of /proc and /sys, in which Linux describes the machine. No
// content makes these functions throw: text that cannot be read or parsed counts as absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pellucid {

// The file's text, or nothing if it cannot be read.
std::optional<std::string> read_text_file(const std::string& path);

// Without the white space around it.
std::string_view trim(std::string_view text);

std::vector<std::string_view> split(std::string_view text, char separator);

// The whole of `text` as a decimal integer; nothing if it is not one or does not fit.
std::optional<std::int64_t> parse_int(std::string_view text);

// "32K" or "1M" as bytes.
std::optional<std::int64_t> parse_size(std::string_view text);

// "0-3,8" as {0, 1, 2, 3, 8}; nothing if any part of it is malformed.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);

}  // namespace pellucid
