#include "collectives/kernels/dispatch.h"

#include <atomic>

#include "collectives/kernels/kernels.h"

namespace rueda::kernels {
namespace {

// The only state of this folder. Nothing depends on it but speed, hence no owner and no order.
std::atomic<const Target*> g_in_use{nullptr};

const Target* best_target() {
  const Target* best = &kCompiledTargets[0];
  for (size_t i = 1; i < kCompiledTargetCount; ++i) {
    if (kCompiledTargets[i].supported()) best = &kCompiledTargets[i];
  }
  return best;
}

}  // namespace

const Target& target_in_use() {
  const Target* target = g_in_use.load(std::memory_order_relaxed);
  if (target == nullptr) {
    // Unless use_target was faster, which then wins.
    const Target* expected = nullptr;
    target = best_target();
    if (!g_in_use.compare_exchange_strong(expected, target, std::memory_order_relaxed)) {
      target = expected;
    }
  }
  return *target;
}

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (size_t i = 0; i < kCompiledTargetCount; ++i) {
    if (kCompiledTargets[i].supported()) names.emplace_back(kCompiledTargets[i].name);
  }
  return names;
}

std::string active_target() { return target_in_use().name; }

bool use_target(const std::string& name) {
  for (size_t i = 0; i < kCompiledTargetCount; ++i) {
    const Target& target = kCompiledTargets[i];
    if (name == target.name && target.supported()) {
      g_in_use.store(&target, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace rueda::kernels
