// ProgramBuilder: appends instructions and finds what each must come after: whoever has written
// what it reads, and whoever has used what it writes or frees. Which instructions, in which order,
// is the affair of program.cc.
#pragma once

#include <utility>

#include "attention/program.h"

namespace rueda::attention {

class ProgramBuilder {
 public:
  using Roles = std::vector<Role>;

  ProgramBuilder(Rank rank, bool backward) {
    program_.rank = rank;
    program_.backward = backward;
  }
  const Program& program() const { return program_; }
  Program take() { return std::move(program_); }

  // slot -1: one of its own. The number of the buffer.
  int add_buffer(Role role, Home home, int64_t bytes = 0, int slot = -1);
  void add_buffers(Home home, const Roles& roles) {
    for (const Role role : roles) add_buffer(role, home);
  }
  int add_slot();
  // reads, writes: by role, beside those that the instruction names; roles without a buffer are
  // passed over. The number of the instruction.
  int add(Instruction one, const Roles& reads = {}, const Roles& writes = {});
  void free_buffer(int buffer) { add({.op = Op::kFree, .message = buffer}); }
  void free_roles(const Roles& roles) {
    for (const int buffer : buffers_of(roles)) free_buffer(buffer);
  }

  // Slots that messages take in turn.
  struct Slots {
    std::vector<int> slots;
    std::vector<int> messages;  // all, in the order of the hops
    int slot_of(size_t index) const { return slots[index % slots.size()]; }
  };
  Slots slots(int64_t count);
  int message_in(Slots* slots, int64_t bytes);
  // What was sent out of the slot that comes next, if anything.
  void empty_next(const Slots& slots);
  void empty_all(const Slots& slots);

 private:
  struct Use {
    int written = -1;
    std::vector<int> read;  // since
  };
  std::vector<int> buffers_of(const Roles& roles) const;
  Use& use(int buffer) { return uses_[static_cast<size_t>(buffer)]; }

  Program program_;
  std::vector<Use> uses_;     // by buffer
  std::vector<int> emptied_;  // by slot: the instruction that freed it last
};

}  // namespace rueda::attention
