// Summarizes a row of logits for observers of a token: sums of its softmax, its likeliest tokens,
// and what top_k, top_p and min_p keep. src/pellucid/execution/token_observation.py defines it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_table.h"
#include "thread_pool.h"

namespace pellucid {

// What is asked of a row.
struct RowQuestion {
  std::int64_t token;          // the token that was chosen
  std::int64_t num_likeliest;  // at most the vocabulary's size
  float sharpness;             // log2(e) / temperature, > 0
  std::int64_t top_k;          // 0: off
  double top_p;                // 1: off
  float min_p;                 // 0: off
};

// Tokens, and the sum of their weights at the temperature, relative to the likeliest token's.
struct KeptTokens {
  std::int64_t count;
  double weight;
};

struct RowSummary {
  float peak;         // the largest logit
  double total;       // sum of e^d over the row, d = logit - peak
  double weighted;    // sum of d * e^d
  std::int64_t rank;  // of the token: 1 for the largest logit; of equal ones the lower id
  bool is_kept;       // the token, by all truncations
  KeptTokens all;     // and what is left after each truncation, in their order
  KeptTokens after_top_k;
  KeptTokens after_top_p;
  KeptTokens after_min_p;
  std::vector<std::int64_t> likeliest;  // in order of rank
  std::vector<bool> are_kept;           // the same tokens
};

// Memory that is reused from row to row.
struct RowSummaryScratch {
  // A sum over tokens.
  struct Prefix {
    std::int64_t count = 0;
    std::int64_t mass = 0;  // in the units by which truncation is decided
    double weight = 0.0;

    void add(const Prefix& other) {
      count += other.count;
      mass += other.mass;
      weight += other.weight;
    }
  };
  // What a chunk of the row adds to the sums of the row.
  struct Chunk {
    float peak;
    double total = 0.0;
    double weighted = 0.0;
    double scaled = 0.0;  // weights at the temperature
    std::int64_t mass = 0;
    std::int64_t num_likelier = 0;  // than the chosen token
    Prefix above;                   // of the tokens above those that are collected
    std::int64_t num_marked = 0;
  };
  struct SampledToken {
    float logit;
    float weight;
  };
  // Of tokens of a sample.
  struct Sample {
    double count = 0.0;
    double weight = 0.0;
    double squares = 0.0;  // of weights

    void add(const Sample& other) {
      count += other.count;
      weight += other.weight;
      squares += other.squares;
    }
  };
  std::vector<Chunk> chunks;
  std::vector<float> scaled;          // [V] weights at the temperature
  std::vector<float> peaks;           // the largest logit of each block of tokens
  std::vector<SampledToken> sampled;  // every stride-th token of the row
  std::vector<Sample> sample;         // their sums, in buckets in order of likelihood
  std::vector<Prefix> buckets;        // of tokens that are collected
  std::vector<std::int32_t> marked;   // [V and a few more] each chunk's collected tokens first
  std::vector<std::int32_t> tokens;   // the collected ones
};

// False where a logit is not finite: the summary is then undefined. The result does not depend on
// the number of threads. Throws as ThreadPool::run.
bool summarize_row(const KernelTable& kernels, ThreadPool& pool, const float* logits,
                   std::int64_t vocab_size, const RowQuestion& question, RowSummaryScratch& scratch,
                   RowSummary& summary);

}  // namespace pellucid
