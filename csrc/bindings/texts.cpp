// Python's Texts, TokenTable and pass_strings.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "gguf_strings.h"
#include "require.h"
#include "text_list.h"
#include "token_table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using FileBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A string's bytes, which it keeps. None of a string that UTF-8 cannot write.
std::optional<std::string_view> bytes_of(const nb::handle& text) {
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) return std::nullopt;
  return std::string_view(data, static_cast<std::size_t>(size));
}

// UnicodeDecodeError if the bytes are not UTF-8.
nb::object string_of(std::string_view text) {
  PyObject* const made =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

TextList texts_of(const nb::list& strings) {
  TextList texts;
  for (const nb::handle string : strings) {
    const std::optional<std::string_view> bytes = bytes_of(string);
    if (!bytes) throw nb::python_error();
    texts.append(*bytes);
  }
  return texts;
}

void require_flags(const TextList& texts, const Flags& flags) {
  require(flags.size() == texts.size(), "flags: has ", flags.size(),
          ", and must have one for each of ", texts.size(), " texts");
}

void require_within(const FileBytes& data, std::size_t begin, std::size_t limit) {
  require(begin <= limit && limit <= data.size(), "begin=", begin, ", limit=", limit, ": of ",
          data.size(), " bytes");
}

std::pair<std::size_t, std::size_t> passed_strings(const FileBytes& data, std::size_t begin,
                                                   std::size_t count, std::size_t limit) {
  require_within(data, begin, limit);
  const nb::gil_scoped_release without_gil;
  const PassedStrings passed = pass_strings(data.data(), begin, count, limit);
  return {passed.count, passed.end};
}

TextList texts_of_file(const FileBytes& data, std::size_t begin, std::size_t count) {
  require_within(data, begin, data.size());
  TextList texts;
  std::size_t valid = 0;
  {
    const nb::gil_scoped_release without_gil;
    const PassedStrings passed = pass_strings(data.data(), begin, count, data.size());
    require(passed.count == count, "count=", count, ": there are ", passed.count, " strings");
    texts = read_strings(data.data(), begin, passed);
    while (valid < count && is_utf8(texts[valid])) ++valid;
  }
  if (valid < count) string_of(texts[valid]);  // says where it is not
  return texts;
}

nb::object text_at(const TextList& texts, std::size_t index) {
  if (index >= texts.size()) throw nb::index_error();
  return string_of(texts[index]);
}

nb::list strings_of(const TextList& texts) {
  nb::list strings;
  for (std::size_t i = 0; i < texts.size(); ++i) strings.append(string_of(texts[i]));
  return strings;
}

// The numbers of characters that wanted texts have, each once, in rising order.
std::vector<std::size_t> sizes_of(const TextList& texts, const Flags& is_wanted) {
  require_flags(texts, is_wanted);
  const nb::gil_scoped_release without_gil;
  std::vector<bool> has_size;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!is_wanted.data()[i]) continue;
    const std::size_t size = count_characters(texts[i]);
    if (size >= has_size.size()) has_size.resize(size + 1);
    has_size[size] = true;
  }
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size < has_size.size(); ++size) {
    if (has_size[size]) sizes.push_back(size);
  }
  return sizes;
}

std::optional<std::int32_t> token_or_none(std::int32_t token) {
  return token == TokenTable::kNone ? std::nullopt : std::optional(token);
}

// Of a string that UTF-8 cannot write, no token has the text.
std::int32_t find_token(const TokenTable& table, const nb::handle& text) {
  const std::optional<std::string_view> bytes = bytes_of(text);
  if (!bytes) PyErr_Clear();
  return bytes ? table.find(*bytes) : TokenTable::kNone;
}

nb::dict tokens_among(const TokenTable& table, const nb::iterable& texts) {
  nb::dict found;
  for (const nb::handle text : texts) {
    const std::int32_t token = find_token(table, text);
    if (token != TokenTable::kNone) found[text] = token;
  }
  return found;
}

}  // namespace

void bind_texts(nb::module_& m) {
  m.def(
      "pass_strings", &passed_strings, "data"_a, "begin"_a, "count"_a, "limit"_a,
      "Passes over strings of a GGUF file from the byte `begin`: up to `count` of them, or to the "
      "first one that does not end by the byte `limit`. How many, and the byte behind them.");

  nb::class_<TextList>(m, "Texts", "Strings that become Python's when they are asked for.")
      .def(
          "__init__",
          [](TextList* self, const nb::list& strings) { new (self) TextList(texts_of(strings)); },
          "strings"_a, nb::sig("def __init__(self, strings: list[str]) -> None"))
      .def_static(
          "read", &texts_of_file, "data"_a, "begin"_a, "count"_a,
          "The strings that `pass_strings` passes over. UnicodeDecodeError if one of them is "
          "not UTF-8.")
      .def("__len__", &TextList::size)
      .def("__getitem__", &text_at, "index"_a, nb::sig("def __getitem__(self, index: int) -> str"))
      .def("tolist", &strings_of, nb::sig("def tolist(self) -> list[str]"))
      .def("sizes", &sizes_of, "is_wanted"_a,
           "The numbers of characters of those texts whose flags are set, each once, rising.");

  nb::class_<TokenTable>(m, "TokenTable", "Finds tokens by their texts.")
      .def(
          "__init__",
          [](TokenTable* self, const TextList& texts, const Flags& is_token) {
            require_flags(texts, is_token);
            const nb::gil_scoped_release without_gil;
            new (self) TokenTable(texts, is_token.data());
          },
          "texts"_a, "is_token"_a, nb::keep_alive<1, 2>(),
          "Of those texts that are tokens and not empty; others may be the same as these.")
      .def("__len__", &TokenTable::size)
      .def(
          "find",
          [](const TokenTable& self, const nb::str& text) {
            return token_or_none(find_token(self, text));
          },
          "text"_a, "The place of the token with this text, None if there is none.")
      .def("among", &tokens_among, "texts"_a,
           nb::sig("def among(self, texts: collections.abc.Iterable[str]) -> dict[str, int]"),
           "The places of those texts that are tokens.")
      .def_prop_ro(
          "repeated", [](const TokenTable& self) { return token_or_none(self.repeated()); },
          "The first token whose text a later one has, too; None: all are different.");
}

}  // namespace pellucid
