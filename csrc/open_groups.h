// Where the keys of a step's groups are in bf16: groups of positions whose keys become codes
// together.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_kernels.h"

namespace pellucid {

// The requests of a step, in the order of the batch.
struct OpenRequests {
  std::int64_t num_requests;
  const std::int32_t* query_start;  // [B + 1]
  const std::int32_t* seq_lens;     // [B], with the step's own tokens
  const std::int32_t* slots;        // [B], all different
};

// The places of each request's groups. A step of T tokens uses at most T / 32 places of the area.
std::vector<OpenGroups> plan_open_groups(const OpenRequests& requests);

}  // namespace pellucid
