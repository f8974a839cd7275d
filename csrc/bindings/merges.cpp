// Python's merges_of_pairs and merges_of_scores.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "listed_merges.h"
#include "require.h"
#include "scored_merges.h"
#include "text_list.h"
#include "token_table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using Scores = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>, nb::c_contig>;

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

Places merges_of_texts(const TextList& texts, const Scores& scores, const Flags& made) {
  const std::size_t count = texts.size();
  require(scores.size() == count && made.size() == count, "scores, made: one for each token");
  std::vector<TokenMerge> merges;
  {
    const nb::gil_scoped_release without_gil;
    merges = merges_of_scores({texts, scores.data(), made.data()});
  }
  return places_of(std::move(merges));
}

std::optional<Places> merges_of_listed_pairs(const TokenTable& tokens, const TextList& pairs) {
  std::optional<std::vector<ListedMerge>> merges;
  {
    const nb::gil_scoped_release without_gil;
    merges = merges_of_pairs(tokens, pairs);
  }
  if (!merges) return std::nullopt;
  return places_of(*std::move(merges));
}

}  // namespace

void bind_merges(nb::module_& m) {
  m.def("merges_of_pairs", &merges_of_listed_pairs, "tokens"_a, "pairs"_a,
        "The merges [M, 3] that are listed as texts, their sides and their results as places of "
        "tokens; None: one has no space, or is of what is no token (csrc/listed_merges.h).");
  m.def("merges_of_scores", &merges_of_texts, "texts"_a, "scores"_a, "made"_a,
        "The merges [M, 2] of different tokens, of which those `made` by merges have at most 256 "
        "characters, as places in `texts` (csrc/scored_merges.h).");
}

}  // namespace pellucid
