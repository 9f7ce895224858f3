// What a forward keeps for its backward, as bytes: for frameworks that hand on memory and no
// objects. Each entry of the batch has equally many, one after the other, so that batches can be
// put together and taken apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/host_calls.h"

namespace rueda::attention {

// Bytes of one entry of the batch; 0: such a forward keeps nothing.
int64_t saved_bytes_of_entry(const AttentionPlan& plan);

// `bytes` has room for all entries. `saved` is of a forward of this plan that has ended.
void write_saved(const AttentionPlan& plan, const Saved& saved, std::byte* bytes);
Saved read_saved(const AttentionPlan& plan, const std::byte* bytes);

}  // namespace rueda::attention
