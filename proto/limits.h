// How much of anything one message may hold. Decoding refuses more with kDataLoss before it
// allocates for it, so a hostile or broken peer costs at most kMaxMessageBytes of memory per
// message (times a small constant: see kMaxEntries).
//
// Senders keep to the same limits: names are checked when they are submitted, free text is cut by
// the encoder (collectives/base/utf8.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace rueda::wire {

inline constexpr size_t kMaxMessageBytes = size_t{16} << 20;

inline constexpr size_t kMaxNameBytes = 512;     // tensor and group names
inline constexpr size_t kMaxLayoutBytes = 1024;  // 64 extents, each at most 15 characters
inline constexpr size_t kMaxErrorBytes = size_t{64} << 10;  // free text: errors, messages
inline constexpr size_t kMaxPlaceBytes = 256;               // a call site
inline constexpr size_t kMaxGroupKeyBytes = 256;            // of an ordered group
inline constexpr size_t kMaxDims = 64;
inline constexpr size_t kMaxSplits = size_t{1} << 22;  // 2048 ranks squared; also first_dims

// per list: requests, cached, awaited, call sites
inline constexpr size_t kMaxRequests = size_t{1} << 16;
inline constexpr size_t kMaxEntries = size_t{1} << 16;  // entries of one response
inline constexpr size_t kMaxPlanBatches = 512;          // of one step plan
inline constexpr size_t kMaxPlanIds = size_t{1} << 14;  // of all its batches together
// Tags, channels' counters and last words have 24 bits for a plan's number.
inline constexpr uint64_t kMaxPlans = (uint64_t{1} << 24) - 1;
inline constexpr size_t kMaxResponses = size_t{1} << 16;
inline constexpr size_t kMaxStalls = size_t{1} << 12;
inline constexpr size_t kMaxEvicted = size_t{1} << 16;
inline constexpr size_t kMaxRanks = size_t{1} << 16;  // ranks named in one stall

inline constexpr size_t kMaxStages = 64;    // of a rank's summary
inline constexpr size_t kMaxWaited = 1024;  // ranks that it waited for: those it waited for longest

inline constexpr size_t kMaxStoreKeyBytes = 512;
inline constexpr size_t kMaxStoreValueBytes = size_t{1} << 20;

inline constexpr size_t kMaxMembers = size_t{1} << 16;      // of an epoch, or of one process set
inline constexpr size_t kMaxProcessSets = size_t{1} << 12;  // that an epoch forms anew
inline constexpr size_t kMaxDigestBytes = 64;               // of a state's layout

inline constexpr size_t kMaxAddressBytes = 512;  // host names, host ids, addresses, hashes
inline constexpr size_t kMaxSettingsBytes = size_t{64} << 10;  // agreed_settings

}  // namespace rueda::wire
