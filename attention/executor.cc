#include "attention/executor.h"

namespace rueda::attention {

Executor::Executor(const Program& program, Messages* messages, Work* work)
    : program_(program),
      messages_(messages),
      work_(work),
      memory_(program.buffers.size(), nullptr),
      slots_(program.slots.size()),
      under_way_(program.list.size(), 0) {
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.slot >= 0) ++slots_[static_cast<size_t>(buffer.slot)].left;
  }
}

Result<bool> Executor::go_on() {
  for (; next_ < program_.list.size(); ++next_) {
    const Instruction& one = program_.list[next_];
    RUEDA_ASSIGN_OR_RETURN(const bool may, may_begin(one));
    if (!may) return false;
    RUEDA_RETURN_IF_ERROR(run(static_cast<int>(next_), one));
  }
  return true;
}

Result<bool> Executor::may_begin(const Instruction& one) {
  for (const int earlier : one.after) {
    const auto place = static_cast<size_t>(earlier);
    if (under_way_[place] == 0) continue;
    RUEDA_ASSIGN_OR_RETURN(const bool ended, messages_->complete(earlier, program_.list[place]));
    if (!ended) return false;
    under_way_[place] = 0;
  }
  return true;
}

Status Executor::run(int number, const Instruction& one) {
  if (one.op == Op::kAttend) RUEDA_RETURN_IF_ERROR(messages_->check());
  for (const int buffer : one.writes) RUEDA_RETURN_IF_ERROR(allocate(buffer));
  if (one.op == Op::kFree) {
    free_buffer(one.message);
    return {};
  }
  if (!one.moves()) return work_->perform(number, one, memory_);
  const auto message = static_cast<size_t>(one.message);
  under_way_[static_cast<size_t>(number)] = 1;
  return messages_->begin(number, one, memory_[message], program_.buffers[message].bytes);
}

Status Executor::allocate(int buffer) {
  Slot* slot = slot_of(buffer);
  if (slot == nullptr) return {};
  if (slot->memory == nullptr) {
    const int number = number_of(slot);
    RUEDA_ASSIGN_OR_RETURN(slot->memory,
                           work_->take(number, program_.slots[static_cast<size_t>(number)]));
  }
  memory_[static_cast<size_t>(buffer)] = slot->memory;
  return {};
}

void Executor::free_buffer(int buffer) {
  Slot* slot = slot_of(buffer);
  memory_[static_cast<size_t>(buffer)] = nullptr;
  if (--slot->left == 0) work_->give(number_of(slot), slot->memory);
}

}  // namespace rueda::attention
