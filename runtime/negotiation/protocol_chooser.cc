#include "runtime/negotiation/protocol_chooser.h"

#include "collectives/base/log.h"

namespace rueda::negotiation {
namespace {

int64_t best(const std::vector<int64_t>& ns) {
  return *std::min_element(ns.begin() + ProtocolChooser::kWarmUps, ns.end());
}

}  // namespace

// A broadcast's size is known to its root alone before it is received; a reducescatter by CMA has
// never been faster (16 and 64 MB: 2.9 and 13.9 against 1.3 and 8.1 ms staged).
bool ProtocolChooser::can_be_cma(CollectiveKind kind, int64_t bytes) const {
  const bool may = kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kAllgather ||
                   kind == CollectiveKind::kAlltoall;
  return cma_available_ && may && bytes >= kSmallest;
}

void ProtocolChooser::settle(Class* of, uint32_t protocol, std::chrono::seconds trust, Time now) {
  of->trust = trust;
  of->asked_before = true;
  of->settled = true;
  of->protocol = protocol;
  of->until = now + of->trust;
}

uint32_t ProtocolChooser::choose(CollectiveKind kind, int64_t bytes, Time now) {
  if (!has_choice(kind, bytes)) return without_choice(kind, bytes);
  Class& of = classes_[class_of(kind, bytes)];
  if (of.settled && now >= of.until) {
    of.settled = false;
    of.sent = {};
    of.ns = {};
  }
  if (of.settled) return of.protocol;
  const uint32_t protocol = of.ns[kStaged].size() < kTries ? kStaged : kCma;
  // Sent again and again, and nobody says how long it took: such batches lie in place, where there
  // is no choice, or overlap each other, which staging does better.
  if (of.sent[protocol]++ == 2 * kTries) settle(&of, kStaged, kMostTrust, now);
  return of.settled ? of.protocol : protocol;
}

void ProtocolChooser::measured(CollectiveKind kind, int64_t bytes, uint32_t protocol, int64_t ns,
                               Time now) {
  if (!has_choice(kind, bytes) || protocol > kCma) return;
  Class& of = classes_[class_of(kind, bytes)];
  if (of.settled) return;
  of.ns[protocol].push_back(ns);
  if (of.ns[kStaged].size() < kTries || of.ns[kCma].size() < kTries) return;
  const int64_t staged = best(of.ns[kStaged]);
  const int64_t cma = best(of.ns[kCma]);
  const uint32_t better = cma < staged ? kCma : kStaged;
  const bool same = of.asked_before && of.protocol == better;
  settle(&of, better, same ? std::min(kMostTrust, 2 * of.trust) : kTrust, now);
  RUEDA_INFO("coordinator", "{} of {} KB and more: {} (staged {:.1f} us, CMA {:.1f} us)",
             name_of(kind), (int64_t{1} << class_of(kind, bytes).second) >> 10,
             better == kCma ? "cma" : "staged", static_cast<double>(staged) / 1e3,
             static_cast<double>(cma) / 1e3);
}

uint32_t ProtocolChooser::settled_protocol(CollectiveKind kind, int64_t bytes) const {
  if (!has_choice(kind, bytes)) return without_choice(kind, bytes);
  const auto it = classes_.find(class_of(kind, bytes));
  return it == classes_.end() ? kStaged : it->second.protocol;
}

bool ProtocolChooser::settled(CollectiveKind kind, int64_t bytes) const {
  if (!has_choice(kind, bytes)) return true;
  const auto it = classes_.find(class_of(kind, bytes));
  return it != classes_.end() && it->second.settled;
}

bool ProtocolChooser::stale(CollectiveKind kind, int64_t bytes, Time now) const {
  if (!has_choice(kind, bytes)) return false;
  const auto it = classes_.find(class_of(kind, bytes));
  return it != classes_.end() && it->second.settled && now >= it->second.until;
}

}  // namespace rueda::negotiation
