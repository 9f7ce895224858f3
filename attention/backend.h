// What an executor runs a program over: messages between ranks, and the work of one rank on its
// memory. On the CPU both are done when they say so. On a GPU they are given to streams: what comes
// later in the program comes later in the stream, and the host waits for none of it.
#pragma once

#include <span>

#include "attention/program.h"
#include "collectives/base/status.h"

namespace rueda::attention {

class Messages {
 public:
  virtual ~Messages() = default;
  // A send or receive of the program, by its number. The memory is borrowed until it has completed.
  virtual Status begin(int number, const Instruction& one, std::byte* memory, int64_t bytes) = 0;
  // What the program does next comes behind its end. False: not yet, another executor of this
  // thread must go on first. Asked until it says true, then no more.
  virtual Result<bool> complete(int number, const Instruction& one) = 0;
  // An error: the call was given up.
  virtual Status check() { return {}; }
};

class Work {
 public:
  virtual ~Work() = default;
  // Memory of a slot, until it is given back.
  virtual Result<std::byte*> take(int slot, int64_t bytes) = 0;
  virtual void give(int slot, std::byte* memory) = 0;
  // An instruction that is no message and no free. memory: of each buffer, null where the executor
  // was given none.
  virtual Status perform(int number, const Instruction& one,
                         std::span<std::byte* const> memory) = 0;
};

}  // namespace rueda::attention
