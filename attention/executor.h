// The executor: runs a program over a backend, on the CPU and on GPUs alike. It keeps the order,
// the buffers and the messages; who computes and who carries is the backend's affair.
//
// Messages of one exchange are posted before the tiles of the one before are computed, so sending
// hides behind arithmetic. That, and every other order, is the program's: the executor adds none.
#pragma once

#include <vector>

#include "attention/backend.h"

namespace rueda::attention {

class Executor {
 public:
  // Borrows all three.
  Executor(const Program& program, Messages* messages, Work* work);

  // The caller's memory, and what is kept from forward to backward.
  template <typename T>
  void give(Role role, const T* memory) {
    const int buffer = program_.find(role);
    if (buffer < 0) return;
    // What is given is only read.
    memory_[static_cast<size_t>(buffer)] = reinterpret_cast<std::byte*>(const_cast<T*>(memory));
  }

  // Goes on in the order of the list: before each instruction it waits for the messages that come
  // before it; everything else has ended by then. True: it has come to the end.
  Result<bool> go_on();
  // How often go_on() got further.
  size_t place() const { return next_; }

 private:
  struct Slot {
    std::byte* memory = nullptr;
    int left = 0;  // buffers that are still to be freed
  };

  Slot* slot_of(int buffer) {
    const int slot = program_.buffers[static_cast<size_t>(buffer)].slot;
    return slot < 0 ? nullptr : &slots_[static_cast<size_t>(slot)];
  }
  int number_of(const Slot* slot) const { return static_cast<int>(slot - slots_.data()); }
  Status allocate(int buffer);
  void free_buffer(int buffer);
  // False: a message that comes before is not there yet.
  Result<bool> may_begin(const Instruction& one);
  Status run(int number, const Instruction& one);

  const Program& program_;
  Messages* const messages_;
  Work* const work_;
  std::vector<std::byte*> memory_;  // by buffer
  std::vector<Slot> slots_;
  std::vector<char> under_way_;  // by instruction: a message that has begun
  size_t next_ = 0;
};

}  // namespace rueda::attention
