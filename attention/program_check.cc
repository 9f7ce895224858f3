#include "attention/program_check.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace rueda::attention {
namespace {

std::string describe(const Program& program, size_t number) {
  return "attention program of rank " + std::to_string(program.rank) +
         (program.backward ? ", backward" : ", forward") + ", instruction " +
         std::to_string(number) + " (" + name_of(program.list[number].op) + "): ";
}
Status wrong(const Program& program, size_t number, const std::string& what) {
  return internal_error(describe(program, number) + what + "; this is a bug of rueda");
}

// Follows the accesses to each buffer in the list's order, and asks for each pair that must not
// meet whether the dependencies order it.
class Check {
 public:
  explicit Check(const Program& program)
      : p_(program),
        buffers_(program.buffers.size()),
        emptied_(program.slots.size(), -1),
        holder_(program.slots.size(), -1) {}

  Status run() {
    for (size_t i = 0; i < p_.list.size(); ++i) {
      const Instruction& one = p_.list[i];
      for (const int earlier : one.after) {
        if (earlier < 0 || static_cast<size_t>(earlier) >= i)
          return wrong(p_, i, "depends on what comes later");
      }
      for (const int b : one.reads) RUEDA_RETURN_IF_ERROR(read(i, b));
      for (const int b : one.writes) RUEDA_RETURN_IF_ERROR(write(i, b));
      if (one.op == Op::kFree) RUEDA_RETURN_IF_ERROR(free_buffer(i, one.message));
    }
    const auto end = p_.list.size() - 1;
    for (size_t b = 0; b < buffers_.size(); ++b) {
      const Home home = p_.buffers[b].home;
      if (home == Home::kSlot && buffers_[b].written >= 0 && !buffers_[b].freed)
        return wrong(p_, end, name(static_cast<int>(b)) + " is never freed");
      if ((home == Home::kResult || home == Home::kSaved) && buffers_[b].written < 0)
        return wrong(p_, end, name(static_cast<int>(b)) + " is never written");
    }
    return {};
  }

 private:
  struct State {
    int written = -1;
    std::vector<int> read;  // since
    bool freed = false;
  };

  std::string name(int b) const {
    return "buffer " + std::to_string(b) + " (" + name_of(p_.buffers[static_cast<size_t>(b)].role) +
           ")";
  }
  State& state(int b) { return buffers_[static_cast<size_t>(b)]; }

  // Does `later` come after `earlier`, through whatever lies between?
  bool ordered(int earlier, size_t later) const {
    std::vector<size_t> open = {later};
    std::vector<char> seen(later - static_cast<size_t>(earlier) + 1, 0);
    while (!open.empty()) {
      const size_t here = open.back();
      open.pop_back();
      for (const int before : p_.list[here].after) {
        if (before == earlier) return true;
        if (before < earlier) continue;
        char& mark = seen[static_cast<size_t>(before - earlier)];
        if (mark == 0) open.push_back(static_cast<size_t>(before));
        mark = 1;
      }
    }
    return false;
  }

  Status read(size_t i, int b) {
    State& s = state(b);
    if (s.freed) return wrong(p_, i, "reads " + name(b) + ", which is freed");
    if (s.written < 0 && p_.buffers[static_cast<size_t>(b)].home != Home::kGiven)
      return wrong(p_, i, "reads " + name(b) + ", which nothing has written");
    if (s.written >= 0 && !ordered(s.written, i))
      return wrong(p_, i,
                   "reads " + name(b) + " and may run before instruction " +
                       std::to_string(s.written) + " has written it");
    s.read.push_back(static_cast<int>(i));
    return {};
  }

  Status after_all_uses(size_t i, int b, const char* what) {
    State& s = state(b);
    if (s.written >= 0 && !ordered(s.written, i))
      return wrong(p_, i,
                   what + name(b) + " and may run before instruction " + std::to_string(s.written) +
                       " has written it");
    for (const int reader : s.read) {
      if (static_cast<size_t>(reader) != i && !ordered(reader, i))
        return wrong(
            p_, i,
            what + name(b) + " while instruction " + std::to_string(reader) + " may still read it");
    }
    return {};
  }

  Status write(size_t i, int b) {
    State& s = state(b);
    const Buffer& buffer = p_.buffers[static_cast<size_t>(b)];
    if (s.freed) return wrong(p_, i, "writes " + name(b) + ", which is freed");
    if (buffer.home == Home::kGiven) return wrong(p_, i, "writes " + name(b) + ", an input");
    RUEDA_RETURN_IF_ERROR(after_all_uses(i, b, "writes "));
    if (s.written < 0 && buffer.slot >= 0) {
      const auto slot = static_cast<size_t>(buffer.slot);
      if (buffer.bytes > p_.slots[slot]) return wrong(p_, i, name(b) + " is larger than its slot");
      if (holder_[slot] >= 0)
        return wrong(p_, i, "writes " + name(b) + " where " + name(holder_[slot]) + " still lies");
      if (emptied_[slot] >= 0 && !ordered(emptied_[slot], i))
        return wrong(p_, i, "writes " + name(b) + " and may run before its slot is free");
      holder_[slot] = b;
    }
    s.written = static_cast<int>(i);
    s.read.clear();
    return {};
  }

  Status free_buffer(size_t i, int b) {
    State& s = state(b);
    const int slot = p_.buffers[static_cast<size_t>(b)].slot;
    if (slot < 0) return wrong(p_, i, "frees " + name(b) + ", which is not the call's own");
    if (s.freed) return wrong(p_, i, "frees " + name(b) + " twice");
    if (s.written < 0) return wrong(p_, i, "frees " + name(b) + ", which nothing has written");
    RUEDA_RETURN_IF_ERROR(after_all_uses(i, b, "frees "));
    s.freed = true;
    holder_[static_cast<size_t>(slot)] = -1;
    emptied_[static_cast<size_t>(slot)] = static_cast<int>(i);
    return {};
  }

  const Program& p_;
  std::vector<State> buffers_;
  std::vector<int> emptied_, holder_;  // by slot
};

using Channel = std::tuple<Rank, Rank, bool>;  // sender, receiver, of answers
using Message = std::pair<Rank, size_t>;       // rank and instruction

int64_t bytes_of(const Program& program, const Instruction& one) {
  return program.buffers[static_cast<size_t>(one.message)].bytes;
}

// The n-th send of each channel meets the n-th receive. met: of each instruction, the one it meets.
Status match(std::span<const Program> world, std::vector<std::vector<Message>>* met) {
  std::map<Channel, std::pair<std::vector<Message>, std::vector<Message>>> channels;
  for (const Program& program : world) {
    met->emplace_back(program.list.size(), Message{-1, 0});
    for (size_t i = 0; i < program.list.size(); ++i) {
      const Instruction& one = program.list[i];
      if (!one.moves()) continue;
      if (one.op == Op::kSend) {
        channels[{program.rank, one.peer, one.answer}].first.emplace_back(program.rank, i);
      } else {
        channels[{one.peer, program.rank, one.answer}].second.emplace_back(program.rank, i);
      }
    }
  }
  const auto program_of = [&](const Message& m) -> const Program& {
    return world[static_cast<size_t>(m.first)];
  };
  for (const auto& [channel, ends] : channels) {
    const auto& [sends, receives] = ends;
    if (sends.size() != receives.size()) {
      const bool more = sends.size() > receives.size();
      const Message odd = more ? sends[receives.size()] : receives[sends.size()];
      return wrong(program_of(odd), odd.second,
                   more ? "its peer does not receive it" : "its peer does not send it");
    }
    for (size_t n = 0; n < sends.size(); ++n) {
      const Program &from = program_of(sends[n]), &to = program_of(receives[n]);
      const Instruction &send = from.list[sends[n].second], &receive = to.list[receives[n].second];
      if (bytes_of(from, send) != bytes_of(to, receive) || send.key != receive.key ||
          send.stage != receive.stage) {
        return wrong(from, sends[n].second,
                     "meets another message: instruction " + std::to_string(receives[n].second) +
                         " of rank " + std::to_string(to.rank));
      }
      (*met)[static_cast<size_t>(from.rank)][sends[n].second] = receives[n];
      (*met)[static_cast<size_t>(to.rank)][receives[n].second] = sends[n];
    }
  }
  return {};
}

// Runs all lists in order, only as far as they get: a message has completed when both ends have
// begun. That is the worst that can be; who does more in advance only gets further.
Status check_progress(std::span<const Program> world,
                      const std::vector<std::vector<Message>>& met) {
  std::vector<size_t> next(world.size(), 0);
  const auto begun = [&](const Message& m) {
    return m.second < next[static_cast<size_t>(m.first)];
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (const Program& program : world) {
      const auto rank = static_cast<size_t>(program.rank);
      const auto may_run = [&](const Instruction& one) {
        return std::all_of(one.after.begin(), one.after.end(), [&](int earlier) {
          const auto number = static_cast<size_t>(earlier);
          return !program.list[number].moves() || begun(met[rank][number]);
        });
      };
      while (next[rank] < program.list.size() && may_run(program.list[next[rank]])) {
        ++next[rank];
        moved = true;
      }
    }
  }
  for (const Program& program : world) {
    const size_t at = next[static_cast<size_t>(program.rank)];
    if (at < program.list.size()) return wrong(program, at, "waits for ever: a deadlock");
  }
  return {};
}

}  // namespace

Status check_program(const Program& program) {
  return program.list.empty() ? Status{} : Check(program).run();
}

Status check_programs(std::span<const Program> world) {
  for (const Program& program : world) RUEDA_RETURN_IF_ERROR(check_program(program));
  std::vector<std::vector<Message>> met;
  RUEDA_RETURN_IF_ERROR(match(world, &met));
  return check_progress(world, met);
}

Status check_spec(const AttentionSpec& spec) {
  RUEDA_ASSIGN_OR_RETURN(const AttentionPlan plan, make_plan(spec, 0));
  RUEDA_RETURN_IF_ERROR(check_plan(plan, false));
  return check_plan(plan, true);
}

Status check_plan(const AttentionPlan& plan, bool keeps_out) {
  std::vector<Program> world[2];
  for (Rank rank = 0; rank < plan.spec.ranks; ++rank) {
    const bool own = rank == plan.rank;
    RUEDA_ASSIGN_OR_RETURN(const AttentionPlan theirs, make_plan(plan.spec, rank));
    for (const bool backward : {false, true})
      world[backward ? 1 : 0].push_back(program_of(own ? plan : theirs, backward, keeps_out));
  }
  RUEDA_RETURN_IF_ERROR(check_programs(world[0]));
  return check_programs(world[1]);
}

}  // namespace rueda::attention
