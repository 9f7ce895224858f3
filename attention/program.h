// A program: what one rank does in one call, as a list of instructions over numbered buffers. The
// executor runs it, a check proves it (program_check.h), `rueda attention plan --program` prints
// it. Pure integers, like the plan: knows no tensor, no thread and no clock.
//
// A send or a receive begins when its turn comes and completes later; everything else completes at
// once. An instruction may run when those in `after` have completed: that alone is the order, and
// the list is one order that fits. Only messages of one peer and channel keep the list's order
// among themselves too: the n-th that is sent meets the n-th that is received.
//
// The list of a ring, for each exchange k: attend to a piece of what needs no message, attend to
// what came for k, answer, post the messages of k + 2, merge the answers to k - 1. At most two
// messages each way and four answers are under way, whence the slots. While one message is attended
// to the next one travels, and the pieces spread what is at home over all exchanges and, where
// answers go back, behind the last one, so that a link and arithmetic of the same speed are both
// busy throughout. Nothing waits for a larger k, so the smallest unfinished exchange proceeds.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "attention/plan.h"

namespace rueda::attention {

// What a buffer holds. "own": this rank's tokens with all heads; "group": its Ulysses group's
// tokens with its share of the heads. Where ulysses is 1 there is no group and own is attended to.
enum class Role : uint8_t {
  kMessage,
  kQ,
  kK,
  kV,
  kOut,
  kLse,  // (batch, heads, tokens), as the caller has it
  kDout,
  kDlse,
  kDq,
  kDk,
  kDv,
  kLseRows,  // (batch, tokens, heads)
  kDelta,    // sum(dout * out) - dlse
  kGroupQ,
  kGroupK,
  kGroupV,
  kGroupOut,
  kGroupLse,
  kGroupDout,
  kGroupDelta,
  kGroupDq,
  kGroupDk,
  kGroupDv,
  kLseLow,      // what lse lacks of the log-sum-exp, of float32 inputs
  kSumWeights,  // sums of exp(score - largest)
  kSumOut,      // float32 sums of what has 16 bits
  kSumDq,
  kSumDk,
  kSumDv,
  kOwnSumDk,  // of heads that several ranks have computed with
  kOwnSumDv,
  kWidened,  // keys and values that came as int8, as float32
};
inline constexpr size_t kRoles = static_cast<size_t>(Role::kWidened) + 1;
constexpr std::array<int, kRoles> no_buffers() {
  std::array<int, kRoles> none{};
  none.fill(-1);
  return none;
}
const char* name_of(Role role);

// Whose memory it is. Given: the caller's, to read. Result: the caller's, to write. Saved: what
// forward keeps for backward. Slot: the call's own, until it is freed.
enum class Home : uint8_t { kGiven, kResult, kSaved, kSlot };

struct Buffer {
  Role role = Role::kMessage;
  Home home = Home::kSlot;
  int slot = -1;      // buffers of one slot have the same memory, one after the other
  int64_t bytes = 0;  // of the caller's and of saved ones 0: not ours to allocate
};

enum class Op : uint8_t {
  kTranspose,  // the log-sum-exp between (batch, heads, tokens) and (batch, tokens, heads)
  kDelta,      // sum(dout * out) - dlse, of own tokens
  kClear,      // sums to zero, largest scores to -infinity
  kPack,       // rows into a message
  kSend,
  kReceive,
  kUnpack,    // rows out of a message, of an exchange of heads
  kAttend,    // tiles, into sums here or, of queries that came, into an answer
  kMerge,     // an answer into the sums here
  kFinish,    // sums to results
  kSumHeads,  // gradients of heads that several ranks have: clear before they come, narrow behind
  kFree,
};
const char* name_of(Op op);

// Of which part of the call it is: the ring, or an exchange of heads for tokens of a Ulysses group.
enum class Stage : uint8_t { kRing, kInward, kOutward };

struct Instruction {
  Op op = Op::kFree;
  Stage stage = Stage::kRing;
  bool answer = false;  // of a message: it is one; answers have a channel of their own
  Rank peer = -1;       // of messages and what belongs to them; of a piece at home: none
  int64_t key = -1;     // of the ring's exchange, or of what is computed before it
  int hop = -1;         // which of the ring's receives (attend) or sends (pack, merge)
  int message = -1;     // the buffer that is packed, sent, received, unpacked, attended to, merged
  int reply = -1;       // attend: the buffer of the answer
  bool last = false;    // transpose, sum heads: at the call's end
  std::vector<int> reads, writes;  // buffers; one in both is added to
  std::vector<int> after;          // instructions, all of them earlier in the list
  bool moves() const { return op == Op::kSend || op == Op::kReceive; }
};

struct Program {
  Rank rank = 0;
  bool backward = false;
  std::vector<Buffer> buffers;
  std::vector<int64_t> slots;  // bytes
  std::vector<Instruction> list;

  // Which buffer has a role; -1: none. Of kMessage there are many, and none is found.
  std::array<int, kRoles> by_role = no_buffers();

  int find(Role role) const { return by_role[static_cast<size_t>(role)]; }
  // Of what the call allocates, when it runs in the list's order.
  int64_t peak_bytes() const;
};

// keeps_out: with Ulysses the group's results are kept for backward, whose kernels want them.
Program make_program(const AttentionPlan& plan, bool backward, bool keeps_out = false);

// The programs of one plan, each made when it is asked for first. Threads: any.
class Programs {
 public:
  const Program& of(const AttentionPlan& plan, bool backward, bool keeps_out);

 private:
  std::mutex mutex_;
  std::array<std::unique_ptr<const Program>, 4> made_;
};
// Of a plan that make_plan gave; lives as long as it or a copy of it.
const Program& program_of(const AttentionPlan& plan, bool backward, bool keeps_out = false);

// A line for each instruction, for people.
std::string as_text(const Program& program);

}  // namespace rueda::attention
