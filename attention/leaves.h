// The work of a program's instructions on the CPU: everything but messages and memory.
//
// Threads: one at a time; each instruction may spread its own work over threads.
#pragma once

#include <memory>
#include <span>

#include "attention/means.h"
#include "attention/program.h"

namespace rueda::attention {

class Leaves {
 public:
  // Borrows both.
  Leaves(const AttentionPlan& plan, const Program& program, const Means& means);
  ~Leaves();
  // One instruction that is no send, receive or free. memory: of each buffer, 64-byte aligned where
  // it is a slot's; null where the caller gives none (lse, dlse, what lse lacks).
  void perform(const Instruction& one, std::span<std::byte* const> memory);

 private:
  class Shard;
  const AttentionPlan& plan_;
  const Program& program_;
  const std::unique_ptr<Shard> shard_;
};

}  // namespace rueda::attention
