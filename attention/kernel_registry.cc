#include "attention/kernel_registry.h"

#include <algorithm>

#include "attention/aten_kernel.h"
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
    "native",
    10,
    nullptr,
    bit_of(DType::kFloat32) | bit_of(DType::kBFloat16) | bit_of(DType::kFloat16),
    native_forward,
    native_backward,
    true};

bool multiplies_pairs() {
#if defined(__x86_64__) && defined(__GNUC__)
  return pairs_kernel() != nullptr && __builtin_cpu_supports("avx512bf16") != 0 &&
         kernels::active_target() == "avx512";
#else
  return false;
#endif
}
void pairs_forward(const KernelTile& tile, float* scratch) {
  pairs_kernel()->forward(tile, scratch);
}
void pairs_backward(const KernelTile& tile, float* scratch) {
  pairs_kernel()->backward(tile, scratch);
}
constexpr LocalKernel kPairs = {
    "avx512bf16",   20,  multiplies_pairs, bit_of(DType::kBFloat16), pairs_forward,
    pairs_backward, true};

// Not of itself: our own have been faster on every CPU that we have measured.
constexpr LocalKernel kAten = {
    "aten",         5,
    aten_available, bit_of(DType::kFloat32) | bit_of(DType::kBFloat16) | bit_of(DType::kFloat16),
    aten_forward,   aten_backward};

bool takes(const LocalKernel* kernel, const KernelNeeds& needs) {
  return (kernel->dtypes & bit_of(needs.queries)) != 0 &&
         (kernel->dtypes & bit_of(needs.keys)) != 0 &&
         (!needs.changes_scores || kernel->changes_scores);
}

bool is_available(const LocalKernel* kernel) {
  return kernel->available == nullptr || kernel->available();
}

}  // namespace

Kernels::Kernels() : all_{&kPairs, &kNative, &kAten} {}

std::vector<const LocalKernel*> Kernels::here() const {
  std::vector<const LocalKernel*> result;
  {
    const std::lock_guard lock(mutex_);
    result = all_;
  }
  std::erase_if(result, [](const LocalKernel* kernel) { return !is_available(kernel); });
  return result;
}

Status Kernels::add(const LocalKernel* kernel) {
  const std::lock_guard lock(mutex_);
  for (const LocalKernel* other : all_) {
    if (std::string(other->name) == kernel->name)
      return invalid_argument(std::string("attention: there is a kernel '") + kernel->name +
                              "' already");
  }
  const auto after = std::find_if(all_.begin(), all_.end(), [&](const LocalKernel* other) {
    return other->priority < kernel->priority;
  });
  all_.insert(after, kernel);
  return {};
}

Status Kernels::use(const std::string& name) {
  RUEDA_RETURN_IF_ERROR(take(name));
  asked_ = true;
  return {};
}

Status Kernels::use_setting(const std::string& name) {
  if (asked_) return {};
  return take(name);
}

Status Kernels::take(const std::string& name) {
  const bool measured = name == "measured";
  if (measured || name.empty() || name == "auto") {
    forced_ = nullptr;
    measured_ = measured;
    return {};
  }
  std::string known = "auto, measured";
  for (const LocalKernel* kernel : here()) {
    if (name == kernel->name) {
      forced_ = kernel;
      return {};
    }
    known += std::string(", ") + kernel->name;
  }
  const std::string missing = name == kAten.name ? "; " + find_aten().message() : "";
  return invalid_argument("RUEDA_ATTENTION_KERNEL='" + name + "': this machine has " + known +
                          missing);
}

bool Kernels::measures(DType queries) const {
  return measured_ || (queries == DType::kBFloat16 && has_matrix_units());
}

// The fastest, with all times; measured once for each class.
const KernelChoice& Kernels::fastest(const KernelNeeds& needs) const {
  const int64_t width = (needs.head_dim + 31) / 32 * 32;
  std::vector<const LocalKernel*> all = here();
  std::erase_if(all, [&](const LocalKernel* kernel) { return !takes(kernel, needs); });
  const std::lock_guard lock(timing_);
  // Kernels may have been added since.
  const auto [place, is_new] =
      known_.try_emplace({needs.queries, needs.keys, width, needs.changes_scores, all.size()});
  KernelChoice& choice = place->second;
  if (!is_new) return choice;
  const std::vector<double> seconds = time_kernels(all, needs.queries, needs.keys, width);
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

const LocalKernel* Kernels::of_highest_priority(const KernelNeeds& needs) const {
  const std::lock_guard lock(mutex_);
  for (const LocalKernel* kernel : all_) {
    if (takes(kernel, needs) && is_available(kernel)) return kernel;
  }
  return &kNative;
}

const LocalKernel* Kernels::find(const KernelNeeds& needs) const {
  const LocalKernel* forced = forced_;
  if (forced != nullptr) return takes(forced, needs) ? forced : nullptr;
  return measures(needs.queries) ? fastest(needs).kernel : of_highest_priority(needs);
}

KernelChoice Kernels::choose(const KernelNeeds& needs) const {
  const LocalKernel* kernel = find(needs);
  if (forced_ != nullptr) return {kernel, "asked for by name (RUEDA_ATTENTION_KERNEL)"};
  if (measures(needs.queries)) return fastest(needs);
  std::string others;
  for (const LocalKernel* other : here()) {
    if (other != kernel && takes(other, needs))
      others += (others.empty() ? "" : ", ") + std::string(other->name);
  }
  return {kernel, "highest priority" + (others.empty() ? " (no other)" : ", before " + others)};
}

Status Kernels::check(const KernelNeeds& needs) const {
  const LocalKernel* forced = forced_;
  if (forced == nullptr || takes(forced, needs)) return {};
  KernelNeeds plain = needs;
  plain.changes_scores = false;
  if (takes(forced, plain)) {
    return invalid_argument(std::string("attention: the kernel '") + forced->name +
                            "' (RUEDA_ATTENTION_KERNEL) has no softcap and no ALiBi; auto does");
  }
  return invalid_argument(std::string("attention: the kernel '") + forced->name +
                          "' (RUEDA_ATTENTION_KERNEL) does not take " + name_of(needs.queries) +
                          " queries with " + name_of(needs.keys) + " keys; auto does");
}

}  // namespace rueda::attention
