#include "attention/kernel_registry.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

#include "attention/aten_kernel.h"
#include "attention/cpu_bf16.h"
#include "attention/kernel_timing.h"
#include "collectives/kernels/kernels.h"

namespace rueda::attention {
namespace {

constexpr uint32_t bit_of(DType dtype) { return uint32_t{1} << static_cast<int>(dtype); }

void native_forward(const KernelTile& tile, float* scratch) {
  native_kernel().forward(tile, scratch);
}
void native_backward(const KernelTile& tile, float* scratch) {
  native_kernel().backward(tile, scratch);
}
// One source for every instruction set; which one is kernels::active_target().
constexpr LocalKernel kNative = {
    "native",       10,
    nullptr,        bit_of(DType::kFloat32) | bit_of(DType::kBFloat16) | bit_of(DType::kFloat16),
    native_forward, native_backward};

bool multiplies_bf16() {
#if defined(__x86_64__) && defined(__GNUC__)
  return kHasBf16Kernel && __builtin_cpu_supports("avx512bf16") != 0 &&
         kernels::active_target() == "avx512";
#else
  return false;
#endif
}
constexpr LocalKernel kBf16 = {
    "avx512bf16", 20, multiplies_bf16, bit_of(DType::kBFloat16), bf16_forward, bf16_backward};

// Not of itself: our own have been faster on every CPU that we have measured.
constexpr LocalKernel kAten = {
    "aten",         5,
    aten_available, bit_of(DType::kFloat32) | bit_of(DType::kBFloat16) | bit_of(DType::kFloat16),
    aten_forward,   aten_backward};

bool takes(const LocalKernel* kernel, DType queries, DType keys) {
  return (kernel->dtypes & bit_of(queries)) != 0 && (kernel->dtypes & bit_of(keys)) != 0;
}

bool is_available(const LocalKernel* kernel) {
  return kernel->available == nullptr || kernel->available();
}

struct Registry {
  std::mutex mutex;
  std::vector<const LocalKernel*> all = {&kBf16, &kNative, &kAten};
  std::atomic<const LocalKernel*> forced{nullptr};
  std::atomic<bool> measured{false};  // whatever the dtypes
};
Registry& registry() {
  static auto* one = new Registry;  // calls may end after static destruction has begun
  return *one;
}

}  // namespace

std::vector<const LocalKernel*> kernels_here() {
  std::vector<const LocalKernel*> result;
  {
    const std::lock_guard lock(registry().mutex);
    result = registry().all;
  }
  std::erase_if(result, [](const LocalKernel* kernel) { return !is_available(kernel); });
  return result;
}

Status add_kernel(const LocalKernel* kernel) {
  const std::lock_guard lock(registry().mutex);
  auto& all = registry().all;
  for (const LocalKernel* other : all) {
    if (std::string(other->name) == kernel->name)
      return invalid_argument(std::string("attention: there is a kernel '") + kernel->name +
                              "' already");
  }
  const auto after = std::find_if(all.begin(), all.end(), [&](const LocalKernel* other) {
    return other->priority < kernel->priority;
  });
  all.insert(after, kernel);
  return {};
}

Status use_kernel(const std::string& name) {
  const bool measured = name == "measured";
  if (measured || name.empty() || name == "auto") {
    registry().forced = nullptr;
    registry().measured = measured;
    return {};
  }
  std::string known = "auto, measured";
  for (const LocalKernel* kernel : kernels_here()) {
    if (name == kernel->name) {
      registry().forced = kernel;
      return {};
    }
    known += std::string(", ") + kernel->name;
  }
  const std::string missing = name == kAten.name ? "; " + find_aten().message() : "";
  return invalid_argument("RUEDA_ATTENTION_KERNEL='" + name + "': this machine has " + known +
                          missing);
}

namespace {

bool measures(DType queries) {
  return registry().measured || (queries == DType::kBFloat16 && has_matrix_units());
}

// The fastest, with all times; measured once for each class.
const KernelChoice& fastest(DType queries, DType keys, int64_t head_dim) {
  static std::mutex mutex;
  static auto* known = new std::map<std::tuple<DType, DType, int64_t, size_t>, KernelChoice>;
  const int64_t width = (head_dim + 31) / 32 * 32;
  std::vector<const LocalKernel*> all = kernels_here();
  std::erase_if(all, [&](const LocalKernel* kernel) { return !takes(kernel, queries, keys); });
  const std::lock_guard lock(mutex);
  // Kernels may have been added since.
  const auto [place, is_new] = known->try_emplace({queries, keys, width, all.size()});
  KernelChoice& choice = place->second;
  if (!is_new) return choice;
  const std::vector<double> seconds = time_kernels(all, queries, keys, width);
  size_t best = 0;
  choice.why = "measured at head_dim " + std::to_string(width) + ":";
  for (size_t i = 0; i < all.size(); ++i) {
    if (seconds[i] < seconds[best] / (best == 0 ? 1.1 : 1.0)) best = i;
    choice.why += (i == 0 ? " " : ", ") + std::string(all[i]->name) + " " +
                  std::to_string(static_cast<int64_t>(seconds[i] * 1e6)) + " us";
  }
  choice.kernel = all[best];
  return choice;
}

const LocalKernel* of_highest_priority(DType queries, DType keys) {
  const std::lock_guard lock(registry().mutex);
  for (const LocalKernel* kernel : registry().all) {
    if (takes(kernel, queries, keys) && is_available(kernel)) return kernel;
  }
  return &kNative;
}

}  // namespace

const LocalKernel* kernel_for(DType queries, DType keys, int64_t head_dim) {
  const LocalKernel* forced = registry().forced;
  if (forced != nullptr) return takes(forced, queries, keys) ? forced : nullptr;
  return measures(queries) ? fastest(queries, keys, head_dim).kernel
                           : of_highest_priority(queries, keys);
}

KernelChoice choose_kernel(DType queries, DType keys, int64_t head_dim) {
  const LocalKernel* kernel = kernel_for(queries, keys, head_dim);
  if (registry().forced != nullptr) return {kernel, "asked for by name (RUEDA_ATTENTION_KERNEL)"};
  if (measures(queries)) return fastest(queries, keys, head_dim);
  std::string others;
  for (const LocalKernel* other : kernels_here()) {
    if (other != kernel && takes(other, queries, keys))
      others += (others.empty() ? "" : ", ") + std::string(other->name);
  }
  return {kernel, "highest priority" + (others.empty() ? " (no other)" : ", before " + others)};
}

Status check_kernel(DType queries, DType keys) {
  const LocalKernel* forced = registry().forced;
  if (forced == nullptr || takes(forced, queries, keys)) return {};
  return invalid_argument(std::string("attention: the kernel '") + forced->name +
                          "' (RUEDA_ATTENTION_KERNEL) does not take " + name_of(queries) +
                          " queries with " + name_of(keys) + " keys; auto does");
}

}  // namespace rueda::attention
