#include "attention/program.h"

#include <algorithm>

#include "attention/exchange.h"
#include "attention/program_builder.h"
#include "attention/workspace.h"

namespace rueda::attention {
namespace {

// The order of one rank's call.
class Order : private ProgramBuilder {
 public:
  Order(const AttentionPlan& plan, bool backward, bool keeps_out)
      : ProgramBuilder(plan.rank, backward),
        plan_(plan),
        spec_(plan.spec),
        ring_(backward ? plan.backward : plan.forward),
        keeps_out_(keeps_out) {}

  Program made() {
    program().backward ? backward() : forward();
    return take();
  }

 private:
  bool narrow() const { return size_of(spec_.dtype) != 4; }
  bool grouped() const { return spec_.ulysses > 1; }
  int64_t own_rows() const { return spec_.batch * plan_.own_tokens() * spec_.heads; }
  int64_t share_rows() const {
    return spec_.batch * plan_.group_tokens() * (plan_.heads.q_end - plan_.heads.q_begin);
  }
  int64_t share_keys() const {
    return spec_.batch * plan_.group_keys() * (plan_.heads.kv_end - plan_.heads.kv_begin);
  }
  int64_t element() const { return static_cast<int64_t>(size_of(spec_.dtype)); }

  // What is attended to.
  Role q() const { return grouped() ? Role::kGroupQ : Role::kQ; }
  Role k() const { return grouped() ? Role::kGroupK : Role::kK; }
  Role v() const { return grouped() ? Role::kGroupV : Role::kV; }
  Role out() const { return grouped() ? Role::kGroupOut : Role::kOut; }
  Role lse() const { return grouped() ? Role::kGroupLse : Role::kLseRows; }
  Role dout() const { return grouped() ? Role::kGroupDout : Role::kDout; }
  Role delta() const { return grouped() ? Role::kGroupDelta : Role::kDelta; }
  Role dq() const { return grouped() ? Role::kGroupDq : Role::kDq; }
  Role dk() const { return grouped() ? Role::kGroupDk : Role::kDk; }
  Role dv() const { return grouped() ? Role::kGroupDv : Role::kDv; }
  Role sum(Role apart, Role result) const { return program().find(apart) >= 0 ? apart : result; }
  Roles query_inputs() const {
    if (!program().backward) return {q()};
    return {q(), dout(), lse(), delta(), Role::kLseLow};
  }
  Roles query_sums() const {
    if (program().backward) return {sum(Role::kSumDq, dq())};
    return {sum(Role::kSumOut, out()), lse(), Role::kSumWeights};
  }
  Roles key_sums() const {
    if (!program().backward) return {};
    return {sum(Role::kSumDk, dk()), sum(Role::kSumDv, dv())};
  }
  static Roles both(Roles a, const Roles& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  void forward() {
    add_buffers(Home::kGiven, {Role::kQ, Role::kK, Role::kV});
    add_buffers(Home::kResult, {Role::kOut, Role::kLse});
    add_buffer(Role::kLseRows, Home::kSlot, own_rows() * 4);
    if (!narrow()) add_buffer(Role::kLseLow, Home::kSaved);
    if (grouped()) {
      add_buffers(Home::kSaved, {Role::kGroupQ, Role::kGroupK, Role::kGroupV, Role::kGroupLse});
      exchange(Stage::kInward);
      if (keeps_out_) {
        add_buffer(Role::kGroupOut, Home::kSaved);
      } else {
        add_buffer(Role::kGroupOut, Home::kSlot, share_rows() * spec_.head_dim * element());
      }
    }
    if (narrow()) add_buffer(Role::kSumOut, Home::kSlot, share_rows() * spec_.head_dim * 4);
    add_buffer(Role::kSumWeights, Home::kSlot, share_rows() * 4);
    add({.op = Op::kClear}, {}, query_sums());
    ring();
    add({.op = Op::kFinish}, query_sums(), {query_sums()[0], lse(), out(), Role::kLseLow});
    free_roles({Role::kSumOut, Role::kSumWeights});
    if (grouped()) {
      exchange(Stage::kOutward);
      if (!keeps_out_) free_roles({Role::kGroupOut});
    }
    add({.op = Op::kTranspose, .last = true}, {Role::kLseRows}, {Role::kLse});
    free_roles({Role::kLseRows});
  }

  void backward() {
    add_buffers(Home::kGiven,
                {Role::kDout, Role::kDlse, Role::kQ, Role::kK, Role::kV, Role::kOut, Role::kLse});
    add_buffers(Home::kResult, {Role::kDq, Role::kDk, Role::kDv});
    if (!narrow()) add_buffer(Role::kLseLow, Home::kGiven);
    add_buffer(Role::kLseRows, Home::kSlot, own_rows() * 4);
    add_buffer(Role::kDelta, Home::kSlot, own_rows() * 4);
    // dlse by rows is where lse by rows will be.
    add({.op = Op::kDelta}, {Role::kDout, Role::kOut, Role::kDlse}, {Role::kDelta, Role::kLseRows});
    const bool added = grouped() && replicates_kv(spec_);
    if (grouped()) {
      free_roles({Role::kLseRows});
      add_buffers(Home::kGiven, {Role::kGroupQ, Role::kGroupK, Role::kGroupV, Role::kGroupLse});
      if (keeps_out_) add_buffer(Role::kGroupOut, Home::kGiven);
      const int64_t wide = spec_.head_dim * element();
      const int64_t wide_keys = spec_.head_dim * (added ? 4 : element());
      add_buffer(Role::kGroupDout, Home::kSlot, share_rows() * wide);
      add_buffer(Role::kGroupDelta, Home::kSlot, share_rows() * 4);
      exchange(Stage::kInward);
      free_roles({Role::kDelta});
      add_buffer(Role::kGroupDq, Home::kSlot, share_rows() * wide);
      add_buffer(Role::kGroupDk, Home::kSlot, share_keys() * wide_keys);
      add_buffer(Role::kGroupDv, Home::kSlot, share_keys() * wide_keys);
    } else {
      add({.op = Op::kTranspose}, {Role::kLse}, {Role::kLseRows});
    }
    if (narrow()) {
      add_buffer(Role::kSumDq, Home::kSlot, share_rows() * spec_.head_dim * 4);
      if (!added) {
        add_buffer(Role::kSumDk, Home::kSlot, share_keys() * spec_.head_dim * 4);
        add_buffer(Role::kSumDv, Home::kSlot, share_keys() * spec_.head_dim * 4);
      }
    }
    add({.op = Op::kClear}, {}, both(query_sums(), key_sums()));
    ring();
    if (narrow())
      add({.op = Op::kFinish}, both(query_sums(), key_sums()),
          added ? Roles{dq()} : Roles{dq(), dk(), dv()});
    free_roles({Role::kSumDq, Role::kSumDk, Role::kSumDv, Role::kGroupDout, Role::kGroupDelta});
    if (!grouped()) return free_roles({Role::kLseRows, Role::kDelta});
    if (added && narrow()) {
      const int64_t own = spec_.batch * plan_.own_keys() * spec_.kv_heads * spec_.head_dim * 4;
      add_buffer(Role::kOwnSumDk, Home::kSlot, own);
      add_buffer(Role::kOwnSumDv, Home::kSlot, own);
    }
    const Roles sums = {sum(Role::kOwnSumDk, Role::kDk), sum(Role::kOwnSumDv, Role::kDv)};
    if (added) add({.op = Op::kSumHeads}, {}, sums);
    exchange(Stage::kOutward);
    if (added && narrow()) add({.op = Op::kSumHeads, .last = true}, sums, {Role::kDk, Role::kDv});
    free_roles({Role::kOwnSumDk, Role::kOwnSumDv, Role::kGroupDq, Role::kGroupDk, Role::kGroupDv});
  }

  // Heads for tokens, or back. All receives are posted first; rows are taken in by rank, so that
  // sums of replicated heads have one order.
  void exchange(Stage stage) {
    const bool inward = stage == Stage::kInward;
    Roles from, to, sums;
    for (const Exchanged& t : exchanged(plan_, program().backward, inward)) {
      from.push_back(inward ? t.own : t.group);
      to.push_back(inward ? t.group : t.own);
      if (t.add) sums.push_back(t.own);
    }
    const auto bytes = [&](Rank u, bool sent) {
      return exchange_bytes(plan_, program().backward, inward, u, sent);
    };
    const Rank mine = plan_.rank % spec_.ulysses;
    std::vector<int> came(static_cast<size_t>(spec_.ulysses), -1), sent;
    for (Rank u = 0; u < spec_.ulysses; ++u) {
      if (u == mine || bytes(u, false) == 0) continue;
      const int message = add_buffer(Role::kMessage, Home::kSlot, bytes(u, false));
      came[static_cast<size_t>(u)] = message;
      add({.op = Op::kReceive,
           .stage = stage,
           .peer = plan_.group_begin() + u,
           .message = message,
           .writes = {message}});
    }
    for (Rank u = 0; u < spec_.ulysses; ++u) {
      if (u == mine || bytes(u, true) == 0) continue;
      const int message = add_buffer(Role::kMessage, Home::kSlot, bytes(u, true));
      sent.push_back(message);
      const Rank peer = plan_.group_begin() + u;
      add({.op = Op::kPack, .stage = stage, .peer = peer, .message = message, .writes = {message}},
          from);
      add({.op = Op::kSend, .stage = stage, .peer = peer, .message = message, .reads = {message}});
    }
    bool first = true;
    for (Rank u = 0; u < spec_.ulysses; ++u) {
      const Rank peer = plan_.group_begin() + u;
      int& message = came[static_cast<size_t>(u)];
      if (u == mine) {
        message = add_buffer(Role::kMessage, Home::kSlot, bytes(u, true));
        add({.op = Op::kPack,
             .stage = stage,
             .peer = peer,
             .message = message,
             .writes = {message}},
            from);
      }
      if (message < 0) continue;
      add({.op = Op::kUnpack, .stage = stage, .peer = peer, .message = message, .reads = {message}},
          first ? sums : to, to);  // each writes its rows
      first = false;
      free_buffer(message);
    }
    for (const int message : sent) free_buffer(message);
  }

  RowBytes bytes_of(const Hop& hop) const { return hop_bytes(plan_, program().backward, hop); }
  bool keys_travel() const { return ring_.rotate == Rotate::kKeysAndValues; }

  void post_receive() {
    const size_t index = next_receive_++;
    const Hop& hop = ring_.receives[index];
    const int message = message_in(&in_, bytes_of(hop).out);
    add({.op = Op::kReceive,
         .peer = hop.peer,
         .key = hop.key,
         .hop = static_cast<int>(index),
         .message = message,
         .writes = {message}});
  }

  void post_send() {
    const size_t index = next_send_++;
    const Hop& hop = ring_.sends[index];
    const int number = static_cast<int>(index);
    empty_next(out_);
    const int message = message_in(&out_, bytes_of(hop).out);
    add({.op = Op::kPack,
         .peer = hop.peer,
         .key = hop.key,
         .hop = number,
         .message = message,
         .writes = {message}},
        keys_travel() ? Roles{k(), v()} : query_inputs());
    add({.op = Op::kSend,
         .peer = hop.peer,
         .key = hop.key,
         .hop = number,
         .message = message,
         .reads = {message}});
    if (bytes_of(hop).back == 0) return;
    const int answer = message_in(&answers_in_, bytes_of(hop).back);
    add({.op = Op::kReceive,
         .answer = true,
         .peer = hop.peer,
         .key = hop.key,
         .hop = number,
         .message = answer,
         .writes = {answer}});
  }

  void post_receives(int64_t key) {
    while (next_receive_ < ring_.receives.size() && ring_.receives[next_receive_].key <= key)
      post_receive();
  }
  void post_sends(int64_t key) {
    while (next_send_ < ring_.sends.size() && ring_.sends[next_send_].key <= key) post_send();
  }

  void attend_at_home(int64_t key) {
    if (plan_.local_tiles(ring_, key).empty()) return;
    const Roles sums = both(query_sums(), key_sums());
    add({.op = Op::kAttend, .key = key}, both(both(query_inputs(), {k(), v()}), sums), sums);
  }

  void attend(int64_t key) {
    if (next_attend_ == ring_.receives.size() || ring_.receives[next_attend_].key != key) return;
    const size_t index = next_attend_++;
    const Hop& hop = ring_.receives[index];
    const int message = in_.messages[index];
    Instruction one{.op = Op::kAttend,
                    .peer = hop.peer,
                    .key = key,
                    .hop = static_cast<int>(index),
                    .message = message,
                    .reads = {message}};
    const int64_t back = bytes_of(hop).back;
    if (back > 0) {
      empty_next(answers_out_);
      one.reply = message_in(&answers_out_, back);
      one.writes = {one.reply};
    }
    const int reply = one.reply;
    if (keys_travel()) {
      add(std::move(one), both(query_inputs(), query_sums()), both(query_sums(), {Role::kWidened}));
    } else {
      add(std::move(one), both({k(), v()}, key_sums()), key_sums());
    }
    if (back > 0)
      add({.op = Op::kSend,
           .answer = true,
           .peer = hop.peer,
           .key = key,
           .hop = static_cast<int>(index),
           .message = reply,
           .reads = {reply}});
    free_buffer(message);
  }

  // Answers to everything up to the key.
  void merge(int64_t key) {
    if (answers_in_.slots.empty()) return;
    while (next_merge_ < next_send_ && ring_.sends[next_merge_].key <= key) {
      const size_t index = next_merge_++;
      const Hop& hop = ring_.sends[index];
      const int answer = answers_in_.messages[index];
      const Roles sums = keys_travel() ? key_sums() : query_sums();
      add({.op = Op::kMerge,
           .peer = hop.peer,
           .key = hop.key,
           .hop = static_cast<int>(index),
           .message = answer,
           .reads = {answer}},
          sums, sums);
      free_buffer(answer);
    }
  }

  void ring() {
    const size_t receives = ring_.receives.size(), sends = ring_.sends.size();
    const int64_t widened = widened_floats(plan_, ring_) * 4;
    if (widened > 0) add_buffer(Role::kWidened, Home::kSlot, widened);
    in_ = slots(receive_slots(plan_, ring_));
    out_ = slots(send_slots(ring_));
    if (ring_.answered) {
      answers_out_ = slots(answer_slots(ring_));
      answers_in_ = slots(awaited_slots(ring_));
    }
    if (spec_.gather_first) {
      while (next_receive_ < receives) post_receive();
      // Everybody can receive everything; but answers come only when others have computed.
      while (!ring_.answered && next_send_ < sends) post_send();
    }
    post_receives(kReceivesAhead - 1);
    post_sends(kSendsAhead - 1);
    for (int64_t key = 0; key < ring_.keys; ++key) {
      attend_at_home(key);
      // First, so that the link has its next message while this exchange is computed.
      post_sends(key + kSendsAhead);
      attend(key);
      post_receives(key + kReceivesAhead);
      merge(key - kMergesBehind);
    }
    attend_at_home(ring_.keys);
    merge(ring_.keys);
    empty_all(out_);
    empty_all(answers_out_);
    if (widened > 0) free_roles({Role::kWidened});
  }

  const AttentionPlan& plan_;
  const AttentionSpec& spec_;
  const RingPlan& ring_;
  const bool keeps_out_;
  Slots in_, out_, answers_out_, answers_in_;
  size_t next_receive_ = 0, next_send_ = 0, next_attend_ = 0, next_merge_ = 0;
};

}  // namespace

int64_t Program::peak_bytes() const {
  std::vector<int> left(slots.size(), 0);  // buffers of each slot that are still to be freed
  for (const Buffer& buffer : buffers) {
    if (buffer.slot >= 0) ++left[static_cast<size_t>(buffer.slot)];
  }
  std::vector<char> held(slots.size(), 0);
  int64_t now = 0, peak = 0;
  for (const Instruction& one : list) {
    for (const int buffer : one.writes) {
      const int slot = buffers[static_cast<size_t>(buffer)].slot;
      if (slot < 0 || held[static_cast<size_t>(slot)] != 0) continue;
      held[static_cast<size_t>(slot)] = 1;
      now += slots[static_cast<size_t>(slot)];
    }
    peak = std::max(peak, now);
    if (one.op != Op::kFree) continue;
    const auto slot = static_cast<size_t>(buffers[static_cast<size_t>(one.message)].slot);
    if (--left[slot] == 0) now -= slots[slot];
  }
  return peak;
}

Program make_program(const AttentionPlan& plan, bool backward, bool keeps_out) {
  return Order(plan, backward, keeps_out).made();
}

const Program& Programs::of(const AttentionPlan& plan, bool backward, bool keeps_out) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<const Program>& known = made_[(backward ? 2 : 0) + (keeps_out ? 1 : 0)];
  if (known == nullptr)
    known = std::make_unique<const Program>(make_program(plan, backward, keeps_out));
  return *known;
}

const Program& program_of(const AttentionPlan& plan, bool backward, bool keeps_out) {
  return plan.programs->of(plan, backward, keeps_out);
}

}  // namespace rueda::attention
