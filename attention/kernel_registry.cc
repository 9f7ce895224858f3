#include "attention/kernel_registry.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "attention/cpu_bf16.h"
#include "collectives/kernels/kernels.h"

namespace rueda::attention {
namespace {

constexpr uint32_t bit_of(DType dtype) { return uint32_t{1} << static_cast<int>(dtype); }

void native_forward(const KernelTile& tile, float* scratch) { native_kernel().forward(tile, scratch); }
void native_backward(const KernelTile& tile, float* scratch) {
  native_kernel().backward(tile, scratch);
}
// One source for every instruction set; which one is kernels::active_target().
constexpr LocalKernel kNative = {
    "native",        10,
    nullptr,         bit_of(DType::kFloat32) | bit_of(DType::kBFloat16) | bit_of(DType::kFloat16),
    native_forward,  native_backward};

bool multiplies_bf16() {
#if defined(__x86_64__) && defined(__GNUC__)
  return kHasBf16Kernel && __builtin_cpu_supports("avx512bf16") != 0 &&
         kernels::active_target() == "avx512";
#else
  return false;
#endif
}
constexpr LocalKernel kBf16 = {"avx512bf16",    20,
                               multiplies_bf16, bit_of(DType::kBFloat16),
                               bf16_forward,    bf16_backward};

bool is_available(const LocalKernel* kernel) {
  return kernel->available == nullptr || kernel->available();
}

struct Registry {
  std::mutex mutex;
  std::vector<const LocalKernel*> all = {&kBf16, &kNative};
  std::atomic<const LocalKernel*> forced{nullptr};
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
      return invalid_argument(std::string("attention: there is a kernel '") + kernel->name + "' already");
  }
  const auto after = std::find_if(all.begin(), all.end(), [&](const LocalKernel* other) {
    return other->priority < kernel->priority;
  });
  all.insert(after, kernel);
  return {};
}

Status use_kernel(const std::string& name) {
  if (name.empty() || name == "auto") {
    registry().forced = nullptr;
    return {};
  }
  std::string known = "auto";
  for (const LocalKernel* kernel : kernels_here()) {
    if (name == kernel->name) {
      registry().forced = kernel;
      return {};
    }
    known += std::string(", ") + kernel->name;
  }
  return invalid_argument("RUEDA_ATTENTION_KERNEL='" + name + "': this machine has " + known);
}

const LocalKernel* kernel_for(DType queries, DType keys) {
  const auto takes = [&](const LocalKernel* kernel) {
    return (kernel->dtypes & bit_of(queries)) != 0 && (kernel->dtypes & bit_of(keys)) != 0;
  };
  const LocalKernel* forced = registry().forced;
  if (forced != nullptr) return takes(forced) ? forced : nullptr;
  const std::lock_guard lock(registry().mutex);
  for (const LocalKernel* kernel : registry().all) {
    if (takes(kernel) && is_available(kernel)) return kernel;
  }
  return &kNative;
}

Status check_kernel(DType queries, DType keys) {
  if (kernel_for(queries, keys) != nullptr) return {};
  return invalid_argument(std::string("attention: the kernel '") + registry().forced.load()->name +
                          "' (RUEDA_ATTENTION_KERNEL) does not take " + name_of(queries) +
                          " queries with " + name_of(keys) + " keys; auto does");
}

}  // namespace rueda::attention
