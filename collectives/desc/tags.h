// Which tags belong to whom, so that messages of different groups, orders and kinds never meet.
// From the highest bit:
//
//   collectives of a process set   0 0 | 1 order | 14 set | 24 generation | 15 call | 8 algorithm
//   of an ordered group            0 1 | 1 order | 16 lowest member | 22 its number of the group
//                                      | 15 call | 8 algorithm
//   send and recv                  1 0 | 30 space | 32 tag
//   send and recv in a group       1 1 | 31 the receiver's number of the group | 31 tag
//
// What ranks tell each other before NCCL starts has the highest number of a call; in a group, whose
// calls come to that number again, it has bits of the algorithm that its entries leave free.
//
// Calls are matched in order beyond their bits. What is negotiated in a process set uses the bits
// of the generation for them too. A rank never gives a number of a group again.
#pragma once

#include <cstdint>

#include "collectives/base/types.h"
#include "collectives/transport/transport.h"

namespace rueda::tags {

inline constexpr int kCallShift = 8;
inline constexpr int kGenerationShift = 23;
inline constexpr int kSetShift = 47;
inline constexpr int kOrderShift = 61;
inline constexpr int kGroupShift = 62;
inline constexpr uint32_t kMostSets = 1 << 14;
inline constexpr uint32_t kMostGroups = (1 << 22) - 1;  // that one rank opens
// In the place of a group's number: GPU tensors that are sent outside of groups.
inline constexpr uint32_t kOfJob = kMostGroups;
inline constexpr uint32_t kMaxGroupTag = 0x7fffffff;

inline transport::Tag of_set(uint32_t process_set) {
  return transport::Tag{process_set} << kSetShift;
}
// number: the lowest member's.
inline transport::Tag of_group(Rank lowest, uint32_t number) {
  constexpr int kRankShift = kGenerationShift + 22;
  return transport::Tag{1} << kGroupShift |
         static_cast<transport::Tag>(static_cast<uint16_t>(lowest)) << kRankShift |
         transport::Tag{number} << kGenerationShift;
}
// Before NCCL's start, for the communicator `number` of the ranks that the tag belongs to.
inline transport::Tag of_set_device(uint32_t process_set, uint32_t number) {
  return of_set(process_set) | (transport::Tag{0x7f'ffff'ffff} << kCallShift) | number;
}
inline transport::Tag of_group_device(Rank lowest, uint32_t number_of_group, uint32_t number) {
  constexpr transport::Tag kFree = 0xf0;
  return of_group(lowest, number_of_group) | (transport::Tag{0x7fff} << kCallShift) | kFree |
         number;
}
inline transport::Tag of_message(uint32_t space, uint32_t tag) {
  return transport::kRendezvousTag | transport::Tag{space & 0x3fffffff} << 32 | tag;
}
inline transport::Tag of_group_message(uint32_t number, uint32_t tag) {
  return transport::kRendezvousTag | transport::Tag{1} << kGroupShift |
         transport::Tag{number} << 31 | tag;
}

}  // namespace rueda::tags
