// Python's merges_of_pairs and merges_of_scores.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "listed_merges.h"
#include "require.h"
#include "scored_merges.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using Scores = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>, nb::c_contig>;

// Views of strings, each of which keeps its bytes.
std::vector<std::string_view> views_of(const nb::list& texts) {
  std::vector<std::string_view> views;
  for (const nb::handle text : texts) {
    Py_ssize_t size = 0;
    const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw nb::python_error();
    views.emplace_back(data, static_cast<std::size_t>(size));
  }
  return views;
}

// Merges as rows of places.
template <class Merge>
Places places_of(std::vector<Merge> merges) {
  static_assert(sizeof(Merge) % sizeof(std::int32_t) == 0);
  auto kept = std::make_unique<std::vector<Merge>>(std::move(merges));
  const nb::capsule owner(
      kept.get(), [](void* data) noexcept { delete static_cast<std::vector<Merge>*>(data); });
  std::vector<Merge>* const own = kept.release();
  return {own->data(), {own->size(), sizeof(Merge) / sizeof(std::int32_t)}, owner};
}

Places merges_of_texts(const nb::list& texts, const Scores& scores, const Flags& made) {
  const std::size_t count = texts.size();
  require(scores.size() == count && made.size() == count, "scores, made: one for each token");
  std::vector<ScoredToken> tokens;
  for (const std::string_view text : views_of(texts)) {
    const std::size_t i = tokens.size();
    tokens.push_back({text, scores.data()[i], made.data()[i]});
  }
  std::vector<TokenMerge> merges;
  {
    const nb::gil_scoped_release without_gil;
    merges = merges_of_scores(tokens);
  }
  return places_of(std::move(merges));
}

std::optional<Places> merges_of_listed_pairs(const nb::list& tokens, const nb::list& pairs) {
  const std::vector<std::string_view> own_tokens = views_of(tokens), own_pairs = views_of(pairs);
  std::optional<std::vector<ListedMerge>> merges;
  {
    const nb::gil_scoped_release without_gil;
    merges = merges_of_pairs(own_tokens, own_pairs);
  }
  if (!merges) return std::nullopt;
  return places_of(*std::move(merges));
}

}  // namespace

void bind_merges(nb::module_& m) {
  m.def("merges_of_pairs", &merges_of_listed_pairs, "tokens"_a, "pairs"_a,
        "The merges [M, 3] that are listed as texts, their sides and their results as places in "
        "`tokens`, which are different; None: one has no space, or is of what is no token "
        "(csrc/listed_merges.h).");
  m.def("merges_of_scores", &merges_of_texts, "tokens"_a, "scores"_a, "made"_a,
        "The merges [M, 2] of different tokens, of which those `made` by merges have at most 256 "
        "characters, as places in `tokens` (csrc/scored_merges.h).");
}

}  // namespace pellucid
