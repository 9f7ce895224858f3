#include "attention/program_builder.h"

#include <algorithm>

namespace rueda::attention {

int ProgramBuilder::add_buffer(Role role, Home home, int64_t bytes, int slot) {
  if (home == Home::kSlot && slot < 0) slot = add_slot();
  if (slot >= 0) {
    int64_t& most = program_.slots[static_cast<size_t>(slot)];
    most = std::max(most, bytes);
  }
  int& known = program_.by_role[static_cast<size_t>(role)];
  if (role != Role::kMessage && known < 0) known = static_cast<int>(program_.buffers.size());
  program_.buffers.push_back({role, home, slot, bytes});
  uses_.emplace_back();
  return static_cast<int>(std::ssize(program_.buffers)) - 1;
}

int ProgramBuilder::add_slot() {
  program_.slots.push_back(0);
  emptied_.push_back(-1);
  return static_cast<int>(std::ssize(program_.slots)) - 1;
}

std::vector<int> ProgramBuilder::buffers_of(const Roles& roles) const {
  std::vector<int> found;
  for (const Role role : roles) {
    const int buffer = program_.find(role);
    if (buffer >= 0 && std::find(found.begin(), found.end(), buffer) == found.end())
      found.push_back(buffer);
  }
  return found;
}

int ProgramBuilder::add(Instruction one, const Roles& reads, const Roles& writes) {
  for (const int buffer : buffers_of(reads)) one.reads.push_back(buffer);
  for (const int buffer : buffers_of(writes)) one.writes.push_back(buffer);
  const int number = static_cast<int>(std::ssize(program_.list));
  const auto after = [&](int earlier) {
    if (earlier >= 0) one.after.push_back(earlier);
  };
  const bool frees = one.op == Op::kFree;
  for (const int buffer : one.reads) after(use(buffer).written);
  const std::vector<int> changed = frees ? std::vector<int>{one.message} : one.writes;
  for (const int buffer : changed) {
    after(use(buffer).written);
    for (const int reader : use(buffer).read) after(reader);
    const int slot = program_.buffers[static_cast<size_t>(buffer)].slot;
    if (slot >= 0 && !frees && use(buffer).written < 0) after(emptied_[static_cast<size_t>(slot)]);
    if (slot >= 0 && frees) emptied_[static_cast<size_t>(slot)] = number;
  }
  std::sort(one.after.begin(), one.after.end());
  one.after.erase(std::unique(one.after.begin(), one.after.end()), one.after.end());
  for (const int buffer : one.reads) {
    // Whom it comes after need not be waited for again.
    std::erase_if(use(buffer).read, [&](int reader) {
      return std::binary_search(one.after.begin(), one.after.end(), reader);
    });
    use(buffer).read.push_back(number);
  }
  for (const int buffer : changed) use(buffer) = {number, {}};
  program_.list.push_back(std::move(one));
  return number;
}

ProgramBuilder::Slots ProgramBuilder::slots(int64_t count) {
  Slots result;
  for (int64_t i = 0; i < count; ++i) result.slots.push_back(add_slot());
  return result;
}

int ProgramBuilder::message_in(Slots* slots, int64_t bytes) {
  const int message =
      add_buffer(Role::kMessage, Home::kSlot, bytes, slots->slot_of(slots->messages.size()));
  slots->messages.push_back(message);
  return message;
}

void ProgramBuilder::empty_next(const Slots& slots) {
  const size_t next = slots.messages.size(), count = slots.slots.size();
  if (next >= count) free_buffer(slots.messages[next - count]);
}

void ProgramBuilder::empty_all(const Slots& slots) {
  const size_t all = slots.messages.size(), count = slots.slots.size();
  for (size_t i = all > count ? all - count : 0; i < all; ++i) free_buffer(slots.messages[i]);
}

}  // namespace rueda::attention
