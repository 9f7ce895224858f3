// Exchange: the ways to add up a slice over H hosts, and which serves what. Pure.
//
//                messages   bytes per rank   messages in a row
//   direct         H-1        (H-1) n          1         everybody gets all and adds for itself
//   bruck          log2 H     (H-1) n          log2 H    the same, passed on (Bruck's allgather)
//   reduce-scatter 2(H-1)     2(H-1)/H n       2         each host adds one shard and sends its sum
//
// All add in the order of hosts, each sum rounded once, so the choice does not change a bit. That
// is why recursive doubling of partial sums, Rabenseifner's algorithm and rings are not among them:
// they add in an order of their own, and round 16-bit sums log2 H or H-1 times. They would not be
// faster either: reduce-scatter and allgather sends their bytes with 2 messages in a row instead of
// 2 log2 H or 2(H-1), and Bruck's allgather waits for as many messages as theirs and sends more
// bytes only below kSurplusBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rueda::algorithms {

enum class Exchange : uint8_t { kDirect, kBruck, kReduceScatterAllgather };

// Two hosts: direct, which sends no more than the bound and waits once. More: by what direct and
// Bruck's allgather send beyond the bound, (H-1)(H-2)/H n, up to kSurplusBytes; of the two the one
// that spends less time, a message costing its sender a fraction of the time that it is under way.
// bytes: n, as it travels.
Exchange choose_exchange(size_t hosts, int64_t bytes);

// "direct", "bruck", "reduce-scatter"; nothing for other names.
std::optional<Exchange> exchange_named(std::string_view name);

// Rounds of Bruck's allgather: in round k, `blocks` more arrive from `distance` hosts to the right.
struct BruckRound {
  size_t distance = 0;
  size_t blocks = 0;
};
size_t bruck_rounds(size_t hosts);
BruckRound bruck_round(size_t hosts, size_t round);

}  // namespace rueda::algorithms
