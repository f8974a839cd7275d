// Python's merges_of_scores.
#include "scored_merges.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <vector>

#include "bindings/bindings.h"
#include "require.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using Scores = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::list merges_as_texts(const nb::list& texts, const Scores& scores, const Flags& made) {
  const std::size_t count = texts.size();
  require(scores.size() == count && made.size() == count, "scores, made: one for each token");
  std::vector<ScoredToken> tokens;
  tokens.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Py_ssize_t size = 0;
    // The object keeps these bytes.
    const char* const data = PyUnicode_AsUTF8AndSize(nb::handle(texts[i]).ptr(), &size);
    if (data == nullptr) throw nb::python_error();
    tokens.push_back({{data, static_cast<std::size_t>(size)}, scores.data()[i], made.data()[i]});
  }
  std::vector<TokenMerge> merges;
  {
    const nb::gil_scoped_release without_gil;
    merges = merges_of_scores(tokens);
  }
  nb::list found;
  for (const TokenMerge& merge : merges) {
    found.append(nb::make_tuple(texts[static_cast<std::size_t>(merge.left)],
                                texts[static_cast<std::size_t>(merge.right)]));
  }
  return found;
}

}  // namespace

void bind_scored_merges(nb::module_& m) {
  m.def("merges_of_scores", &merges_as_texts, "tokens"_a, "scores"_a, "made"_a,
        "Pairs of texts: the merges of different tokens, of which those `made` by merges have at "
        "most 256 characters (csrc/scored_merges.h).");
}

}  // namespace pellucid
