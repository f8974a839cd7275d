// Python's RowSummarizer: what observers of a token want to know about its row of logits.
#include "row_summary.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

class RowSummarizer {
 public:
  RowSummarizer(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool)
      : kernels_(kernels), pool_(std::move(pool)) {}

  nb::object summarize(const FloatVector& logits, const RowQuestion& question) {
    const auto vocab_size = static_cast<std::int64_t>(logits.size());
    require(question.token >= 0 && question.token < vocab_size, "token=", question.token,
            ": is not in the vocabulary of ", vocab_size);
    require(question.num_likeliest >= 0 && question.num_likeliest <= vocab_size,
            "num_likeliest=", question.num_likeliest, ": allowed are 0 to ", vocab_size);
    require(question.sharpness > 0.0f, "sharpness=", question.sharpness, ": must be positive");
    RowSummary summary;
    // With the GIL: the scratch memory is one caller's at a time.
    const bool is_finite =
        summarize_row(kernels_, *pool_, logits.data(), vocab_size, question, scratch_, summary);
    return is_finite ? as_tuple(summary) : nb::none();
  }

 private:
  static nb::object as_tuple(const RowSummary& summary) {
    const auto kept = [](const KeptTokens& own) { return nb::make_tuple(own.count, own.weight); };
    nb::list likeliest;
    for (std::size_t i = 0; i < summary.likeliest.size(); ++i) {
      likeliest.append(
          nb::make_tuple(summary.likeliest[i], static_cast<bool>(summary.are_kept[i])));
    }
    return nb::make_tuple(summary.peak, summary.total, summary.weighted, summary.rank,
                          summary.is_kept, kept(summary.all), kept(summary.after_top_k),
                          kept(summary.after_top_p), kept(summary.after_min_p), likeliest);
  }

  const KernelTable& kernels_;
  std::shared_ptr<ThreadPool> pool_;
  RowSummaryScratch scratch_;
};

}  // namespace

void bind_row_summary(nb::module_& m) {
  nb::class_<RowSummarizer>(m, "RowSummarizer",
                            "Summarizes rows of logits, one at a time; keeps its memory.")
      .def(nb::init<const KernelTable&, std::shared_ptr<ThreadPool>>(), "kernels"_a, "pool"_a,
           nb::keep_alive<1, 2>())
      .def(
          "summarize",
          [](RowSummarizer& self, const FloatVector& logits, std::int64_t token,
             std::int64_t num_likeliest, float sharpness, std::int64_t top_k, double top_p,
             float min_p) {
            return self.summarize(logits, {token, num_likeliest, sharpness, top_k, top_p, min_p});
          },
          "logits"_a, "token"_a, "num_likeliest"_a, "sharpness"_a, "top_k"_a = 0, "top_p"_a = 1.0,
          "min_p"_a = 0.0f,
          nb::sig(
              "def summarize(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), "
              "order='C', device='cpu', writable=False)], token: int, num_likeliest: int, "
              "sharpness: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> "
              "tuple[float, float, float, int, bool, tuple[int, float], tuple[int, float], "
              "tuple[int, float], tuple[int, float], list[tuple[int, bool]]] | None"),
          "The fields of backends.base.RowSummary; None where a logit is not finite.");
}

}  // namespace pellucid
