// Plans where the keys of a step's groups are: the two latest of a request in its slot, those
// before them in the area.
#include "open_groups.h"

#include <algorithm>

namespace pellucid {

std::vector<OpenGroups> plan_open_groups(const OpenRequests& requests) {
  std::vector<OpenGroups> planned;
  planned.reserve(static_cast<std::size_t>(requests.num_requests));
  std::int64_t area = 0;
  for (std::int64_t b = 0; b < requests.num_requests; ++b) {
    const std::int64_t end = requests.seq_lens[b];
    const std::int64_t first = end - (requests.query_start[b + 1] - requests.query_start[b]);
    const OpenGroups groups{requests.slots[b], first, (end - 1) / kOpenTokens, area};
    const std::int64_t num_groups = groups.last_group - groups.first_group() + 1;
    area += std::max<std::int64_t>(num_groups - kOpenGroups, 0);
    planned.push_back(groups);
  }
  return planned;
}

}  // namespace pellucid
