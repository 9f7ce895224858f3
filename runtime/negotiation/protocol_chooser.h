// ProtocolChooser: which way the data of a collective takes inside a host. Kept by the root,
// because the choice has to be the same on all ranks. Pure; time and measurements come from
// outside. Sizes are those of the root's own inputs.
//
// Both protocols move the same bytes and give the same bits; which is faster depends on the machine
// and on what else it does. So it is measured: per kind and size class (powers of two) each is
// tried several times in a row, the first of them to warm the caches that the others left cold, and
// the shorter best time wins: what disturbs a measurement only adds to it. After a while the
// question is asked again (later and later while the answer stays).
//
//   class:   unknown --kTries measurements of each protocol--> settled --trust passes--> unknown
//                    --2 kTries batches, too few measured--> settled (staged) for long
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collectives/base/types.h"
#include "runtime/negotiation/readiness_table.h"

namespace rueda::negotiation {

class ProtocolChooser {
 public:
  static constexpr uint32_t kStaged = 0;
  static constexpr uint32_t kCma = 1;
  static constexpr int64_t kSmallest = 64 << 10;  // bytes; below there is no choice
  static constexpr size_t kTries = 12;            // measurements of each protocol
  static constexpr size_t kWarmUps = 6;           // of them, not counted
  static constexpr std::chrono::seconds kTrust{60};
  static constexpr std::chrono::seconds kMostTrust{640};

  // forced: "auto", "staged", "cma".
  explicit ProtocolChooser(const std::string& forced) : forced_(forced) {}
  // All ranks can read each other's memory. Whoever says so also reports what it measures.
  void set_cma_available(bool available) { cma_available_ = available; }

  // For a batch that goes out now.
  uint32_t choose(CollectiveKind kind, int64_t bytes, Time now);
  // One such batch, not all in place, has taken this long on the root rank, with no other under way
  // beside it.
  void measured(CollectiveKind kind, int64_t bytes, uint32_t protocol, int64_t ns, Time now);
  // The protocol to freeze into a plan; only meaningful when settled.
  uint32_t settled_protocol(CollectiveKind kind, int64_t bytes) const;
  bool settled(CollectiveKind kind, int64_t bytes) const;
  // The measurements of this class are old.
  bool stale(CollectiveKind kind, int64_t bytes, Time now) const;

 private:
  struct Class {
    std::array<size_t, 2> sent{};
    std::array<std::vector<int64_t>, 2> ns;
    bool settled = false;
    uint32_t protocol = kStaged;
    Time until{};
    std::chrono::seconds trust = kTrust;
    bool asked_before = false;
  };
  using Key = std::pair<CollectiveKind, int>;
  bool has_choice(CollectiveKind kind, int64_t bytes) const {
    return forced_ == "auto" && can_be_cma(kind, bytes);
  }
  uint32_t without_choice(CollectiveKind kind, int64_t bytes) const {
    return forced_ == "cma" && can_be_cma(kind, bytes) ? kCma : kStaged;
  }
  bool can_be_cma(CollectiveKind kind, int64_t bytes) const;
  // Powers of two.
  static Key class_of(CollectiveKind kind, int64_t bytes) {
    return {kind, 63 - __builtin_clzll(static_cast<uint64_t>(bytes))};
  }
  static void settle(Class* of, uint32_t protocol, std::chrono::seconds trust, Time now);

  std::string forced_;
  bool cma_available_ = false;
  std::map<Key, Class> classes_;
};

}  // namespace rueda::negotiation
