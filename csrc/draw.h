// Draws tokens from rows of logits. src/pellucid/execution (odds, randomness, sampling_stages)
// defines what is drawn, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel_table.h"

namespace pellucid {

// The parameters of one draw. Arrays are borrowed; token ids are below the vocabulary's size.
struct Draw {
  NoiseKey key{};
  float sharpness = 0.0f;  // log2(e) / temperature; 0: the largest logit, greedily
  std::int64_t top_k = 0;  // 0: off
  double top_p = 1.0;
  float min_p = 0.0f;
  double typical_p = 1.0;
  const std::uint32_t* allowed = nullptr;   // a bit for each token, the lowest first; or null: all
  const std::int32_t* forbidden = nullptr;  // [num_forbidden]
  std::int64_t num_forbidden = 0;
  const std::int32_t* bias_ids = nullptr;  // [num_biases], each once
  const double* biases = nullptr;          // [num_biases]
  std::int64_t num_biases = 0;
  const std::int32_t* text = nullptr;  // [num_text_tokens], prompt then output, for penalties
  std::int64_t num_text_tokens = 0;
  std::int64_t num_prompt_tokens = 0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
};

// Memory that a thread reuses from draw to draw.
class DrawScratch {
 public:
  // A token that may be drawn, in a draw stage by stage.
  struct Candidate {
    float logit;
    float exponent;
    float weight;
    std::int64_t mass;
    double distance;  // of the exponent from the mean one
    std::int64_t token;
  };
  // A token whose logit the request changes.
  struct Edit {
    std::int32_t token;
    float original;
    double logit;
    bool is_in_text;
    std::int64_t num_in_output;
  };

  std::vector<Candidate> candidates;
  std::vector<float> weights;  // of a row's groups
  std::vector<float> peaks;
  std::vector<Edit> edits;
  std::vector<std::int32_t> edit_of;  // [V] 1 + its index, or 0
};

// About the bytes that a DrawScratch takes for a vocabulary.
constexpr std::size_t draw_scratch_bytes(std::int64_t vocab_size) {
  return 2 * sizeof(float) * static_cast<std::size_t>(vocab_size);  // weights, and edit_of
}

constexpr std::int64_t kUndrawn = -1;

// Draws a token from a row of `vocab_size` logits. Returns kUndrawn where the definition in Python
// raises an error. Changes logits during the call, and restores them.
//
// `largest` is the column of the first largest logit, or of the first NaN.
std::int64_t draw_token(const KernelTable& kernels, float* logits, std::int64_t vocab_size,
                        std::int64_t largest, const Draw& draw, DrawScratch& scratch);

}  // namespace pellucid
