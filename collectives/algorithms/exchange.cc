#include "collectives/algorithms/exchange.h"

#include <algorithm>

namespace rueda::algorithms {
namespace {

// What a network of 10 Gbit/s carries while one message is under way (about 15 us more).
constexpr int64_t kSurplusBytes = 16 << 10;
// A message is under way for about 30 us and takes its two ends about 7 us of work: 15 of them one
// after another are as long as four rounds.
constexpr size_t kDirectHosts = 16;

}  // namespace

Exchange choose_exchange(size_t hosts, int64_t bytes) {
  if (hosts <= 2) return Exchange::kDirect;
  const auto h = static_cast<int64_t>(hosts);
  if ((h - 1) * (h - 2) * bytes > h * kSurplusBytes) return Exchange::kReduceScatterAllgather;
  return hosts <= kDirectHosts ? Exchange::kDirect : Exchange::kBruck;
}

std::optional<Exchange> exchange_named(std::string_view name) {
  if (name == "direct") return Exchange::kDirect;
  if (name == "bruck") return Exchange::kBruck;
  if (name == "reduce-scatter") return Exchange::kReduceScatterAllgather;
  return std::nullopt;
}

size_t bruck_rounds(size_t hosts) {
  size_t rounds = 0;
  while (size_t{1} << rounds < hosts) ++rounds;
  return rounds;
}

BruckRound bruck_round(size_t hosts, size_t round) {
  const size_t distance = size_t{1} << round;
  return {distance, std::min(distance, hosts - distance)};
}

}  // namespace rueda::algorithms
