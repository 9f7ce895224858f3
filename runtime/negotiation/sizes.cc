#include "runtime/negotiation/sizes.h"

#include <algorithm>

namespace rueda::negotiation {

bool fit(const wire::Request& request, const SizesPtr& sizes, Rank rank, Rank ranks) {
  if (!has_sizes(request.kind)) return sizes == nullptr;
  const bool gathers = request.kind == CollectiveKind::kAllgather;
  const auto count = static_cast<size_t>(ranks);
  const auto own = static_cast<size_t>(rank);
  if (sizes == nullptr || sizes->size() != (gathers ? count : count * count)) return false;
  if (std::any_of(sizes->begin(), sizes->end(), [](int64_t rows) { return rows < 0; }))
    return false;
  if (gathers) {
    if (request.shape.empty() || (*sizes)[own] != request.shape[0]) return false;
  } else if (request.splits.size() > count ||
             !std::equal(request.splits.begin(), request.splits.end(),
                         sizes->begin() + static_cast<ptrdiff_t>(own * count))) {
    return false;
  }
  if (request.output_rows < 0) return true;
  uint64_t arrive = 0;  // a root may say anything
  for (size_t from = 0; from < count; ++from)
    arrive += static_cast<uint64_t>((*sizes)[gathers ? from : from * count + own]);
  return arrive == static_cast<uint64_t>(request.output_rows);
}

}  // namespace rueda::negotiation
