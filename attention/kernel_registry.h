// Kernels: the local kernels that calls may use, an ordered list, from which each call takes one
// for its dtypes. Whoever composes a process makes one and gives it to the engines.
//
//   auto      the highest priority. Where bfloat16 meets a CPU with matrix units (AMX), which none
//             of our own kernels uses: measured
//   measured  the fastest: timed once for each dtype and class of head_dim, at the first call.
//             Another than the one of highest priority is taken if it is a tenth faster
//   a name    that one
//
// Threads: any; add and use before calls that should see it.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "attention/local_kernel.h"
#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::attention {

// What is asked of a kernel.
struct KernelNeeds {
  DType queries = DType::kFloat32, keys = DType::kFloat32;
  int64_t head_dim = 0;         // matters where kernels are measured
  bool changes_scores = false;  // softcap or ALiBi
};

// A kernel, and why it is this one, for people.
struct KernelChoice {
  const LocalKernel* kernel = nullptr;
  std::string why;
};

class Kernels {
 public:
  // With the library's own.
  Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  // Those that this machine has, highest priority first.
  std::vector<const LocalKernel*> here() const;
  // Makes one known; it outlives this list. InvalidArgument names the kernel that has the name.
  Status add(const LocalKernel* kernel);
  // From now on calls choose so: "auto" or "", "measured", or a kernel's name. InvalidArgument
  // lists the names that this machine has.
  Status use(const std::string& name);
  // The same of a setting: what use() has said stays.
  Status use_setting(const std::string& name);

  // Null: the kernel that was asked for does not take it.
  const LocalKernel* find(const KernelNeeds& needs) const;
  KernelChoice choose(const KernelNeeds& needs) const;
  // Says so, by name.
  Status check(const KernelNeeds& needs) const;

 private:
  Status take(const std::string& name);
  bool measures(DType queries) const;
  const KernelChoice& fastest(const KernelNeeds& needs) const;
  const LocalKernel* of_highest_priority(const KernelNeeds& needs) const;

  mutable std::mutex mutex_;
  std::vector<const LocalKernel*> all_;  // guarded
  std::atomic<bool> asked_{false};       // by use()
  std::atomic<const LocalKernel*> forced_{nullptr};
  std::atomic<bool> measured_{false};  // whatever the dtypes
  // Of each class, and of how many kernels there were; guarded. Nothing is ever taken away.
  mutable std::mutex timing_;
  mutable std::map<std::tuple<DType, DType, int64_t, bool, size_t>, KernelChoice> known_;
};

}  // namespace rueda::attention
