// What the members of an ordered group say of their n-th call before it runs, and what follows from
// it. All see the same, so all come to the same verdict without a root. Pure.
//
//   call --entry_of--> GroupEntry --exchanged--> sizes_by_entries --> the call's sizes
//                                                        | the entries do not say enough
//                                                        v
//                      GroupCall ---exchanged--> agree_on_call -----> its sizes, or an error that
//                                                                     names ranks and values
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "proto/messages.h"
#include "runtime/negotiation/requests.h"
#include "runtime/negotiation/sizes.h"

namespace rueda::negotiation {

struct GroupEntry {
  // rows and room say all of the call's sizes: it has one tensor, cut into equal parts.
  static constexpr uint32_t kPlain = 1;
  // Where all members have this one's sizes, its outputs have room for exactly what it gets.
  static constexpr uint32_t kFits = 2;
  // This member sees that all can read each other's memory.
  static constexpr uint32_t kCma = 4;
  // The first member has the call's data move so, where all can.
  static constexpr uint32_t kByCma = 8;

  uint64_t agreed = 0;      // a hash of what must be equal
  uint64_t sizes = 0;       // a hash of what may differ
  int64_t rows = 0;         // kPlain: that it sends, or scatters, or expects of a scatter
  int64_t room = -1;        // kPlain: that its output has room for; -1: any number
  uint64_t expected = 0;    // kPlain: a hash of the rows that it expects by member; 0: any
  uint32_t call_bytes = 0;  // of the encoded GroupCall
  uint32_t flags = 0;

  bool operator==(const GroupEntry&) const = default;
};
// It travels in one cache line.
static_assert(sizeof(GroupEntry) == 48);

// Of the tensors of one call, by the member at this place. Without call_bytes.
GroupEntry entry_of(std::span<const wire::Request> tensors, Rank place, Rank ranks);

// For each tensor: gathered and scattered rows by member, the matrix of an alltoall; null where
// there is nothing to say. Empty: the members have to tell what they ask for. own: this member's
// tensors. root: its place, where the kind has one.
std::optional<std::vector<SizesPtr>> sizes_by_entries(std::span<const wire::Request> own, Rank root,
                                                      std::span<const GroupEntry> entries);

// calls: of all members by place; ranks: their numbers in the job; which: "key#3". The error is the
// same on all members.
Result<std::vector<SizesPtr>> agree_on_call(const std::vector<wire::GroupCall>& calls,
                                            const std::vector<Rank>& ranks,
                                            const std::string& which);

}  // namespace rueda::negotiation
