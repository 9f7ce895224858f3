#include "attention/program.h"

namespace rueda::attention {
namespace {

std::string buffer_name(const Program& program, int buffer) {
  const std::string number = "b" + std::to_string(buffer);
  const Role role = program.buffers[static_cast<size_t>(buffer)].role;
  return role == Role::kMessage ? number : number + ":" + name_of(role);
}

std::string list_of(const Program& program, const std::vector<int>& buffers) {
  std::string text;
  for (const int buffer : buffers) text += (text.empty() ? "" : " ") + buffer_name(program, buffer);
  return text;
}

std::string place_of(const Instruction& one) {
  std::string text;
  if (one.stage != Stage::kRing) {
    text += one.stage == Stage::kInward ? " heads in" : " heads out";
  } else if (one.key >= 0) {
    text += one.op == Op::kAttend && one.hop < 0 ? " own keys, before exchange " : " exchange ";
    text += std::to_string(one.key);
  }
  if (one.peer >= 0) {
    const bool comes = one.op == Op::kReceive || one.op == Op::kAttend || one.op == Op::kMerge ||
                       one.op == Op::kUnpack;
    text += (comes ? " from rank " : " to rank ") + std::to_string(one.peer);
  }
  return text + (one.answer ? ", answer" : "");
}

}  // namespace

const char* name_of(Op op) {
  static constexpr const char* kNames[] = {"transpose", "delta",   "clear",     "pack",
                                           "send",      "receive", "unpack",    "attend",
                                           "merge",     "finish",  "sum heads", "free"};
  return kNames[static_cast<size_t>(op)];
}

const char* name_of(Role role) {
  static constexpr const char* kNames[] = {
      "message",     "q",           "k",        "v",        "out",       "lse",
      "dout",        "dlse",        "dq",       "dk",       "dv",        "lse rows",
      "delta",       "group q",     "group k",  "group v",  "group out", "group lse",
      "group dout",  "group delta", "group dq", "group dk", "group dv",  "lse low",
      "sum weights", "sum out",     "sum dq",   "sum dk",   "sum dv",    "own sum dk",
      "own sum dv",  "widened"};
  return kNames[static_cast<size_t>(role)];
}

std::string as_text(const Program& program) {
  std::string text =
      "rank " + std::to_string(program.rank) + (program.backward ? ", backward: " : ", forward: ") +
      std::to_string(program.list.size()) + " instructions, " +
      std::to_string(program.buffers.size()) + " buffers, " + std::to_string(program.slots.size()) +
      " slots, at most " + std::to_string(program.peak_bytes()) + " bytes\n";
  for (size_t i = 0; i < program.list.size(); ++i) {
    const Instruction& one = program.list[i];
    const std::string number = std::to_string(i);
    text += std::string(number.size() < 5 ? 5 - number.size() : 0, ' ') + number + "  " +
            name_of(one.op) + place_of(one);
    if (one.moves() || one.op == Op::kFree) {
      const Buffer& buffer = program.buffers[static_cast<size_t>(one.message)];
      text += "  " + buffer_name(program, one.message);
      if (buffer.slot >= 0) text += " in slot " + std::to_string(buffer.slot);
      if (one.moves()) text += ", " + std::to_string(buffer.bytes) + " bytes";
    } else {
      if (!one.reads.empty()) text += "  reads " + list_of(program, one.reads);
      if (!one.writes.empty()) text += "  writes " + list_of(program, one.writes);
    }
    if (!one.after.empty()) {
      text += "  after";
      for (const int earlier : one.after) text += " " + std::to_string(earlier);
    }
    text += '\n';
  }
  return text;
}

}  // namespace rueda::attention
