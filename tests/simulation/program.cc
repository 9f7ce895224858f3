#include "tests/simulation/program.h"

#include <algorithm>
#include <random>

#include "runtime/negotiation/agreement.h"
#include "tests/runtime/requests.h"

namespace rueda::testing {
namespace {

// How a rank goes through its step.
enum class Mode { kAsync, kPolling, kBlocking, kReversed };

class Writer {
 public:
  Writer(Job* job, std::mt19937_64* dice) : job_(job), dice_(dice) {}

  uint64_t below(uint64_t n) { return (*dice_)() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

  // units: requests that go together; the ranks may take them in any order.
  void step(Rank rank, std::vector<std::vector<wire::Request>> units, Mode mode, int number) {
    auto& out = job_->ranks[static_cast<size_t>(rank)];
    if (mode == Mode::kAsync || mode == Mode::kPolling)
      std::shuffle(units.begin(), units.end(), *dice_);
    if (mode == Mode::kReversed) std::reverse(units.begin(), units.end());
    const bool waits_at_once = mode == Mode::kBlocking || mode == Mode::kReversed;
    const auto kind = mode == Mode::kPolling ? Action::Kind::kPoll : Action::Kind::kWait;
    for (const auto& unit : units) {
      if (one_in(4)) out.push_back({Action::Kind::kThink, {}, "", number});
      out.push_back({Action::Kind::kSubmit, unit, "", number});
      if (waits_at_once)
        for (const auto& r : unit) out.push_back({kind, {}, r.name, number});
    }
    if (waits_at_once) return;
    if (one_in(2)) std::shuffle(units.begin(), units.end(), *dice_);
    for (const auto& unit : units)
      for (const auto& r : unit) out.push_back({kind, {}, r.name, number});
  }

 private:
  Job* job_;
  std::mt19937_64* dice_;
};

// What a step submits: up to so many tensors, now and then a group. What is submitted together is
// one unit.
std::vector<std::vector<wire::Request>> random_units(Writer* w, uint64_t most,
                                                     uint64_t broadcast_one_in) {
  std::vector<std::vector<wire::Request>> units;
  const size_t tensors = 1 + w->below(most);
  for (size_t t = 0; t < tensors; ++t) {
    const auto kind = w->one_in(broadcast_one_in) ? CollectiveKind::kBroadcast
                      : w->one_in(6)              ? CollectiveKind::kReducescatter
                      : w->one_in(6)              ? CollectiveKind::kAllgather
                      : w->one_in(6)              ? CollectiveKind::kAlltoall
                                                  : CollectiveKind::kAllreduce;
    units.push_back({request("t" + std::to_string(t), static_cast<int64_t>(4 + t), kind)});
  }
  if (w->one_in(4)) {
    const std::string group = "allreduce.g0";
    units.push_back({grouped(request("g0"), group, 2), grouped(request("g1"), group, 2)});
  }
  return units;
}

// Rows of the ranks: `usual`, but one rank has others.
struct Rows {
  int64_t usual = 0;
  Rank odd = -1;
  int64_t of_odd = 0;
  int64_t of(Rank rank, Rank to) const {
    return ((rank == odd ? of_odd : usual) + rank + 2 * to) % 3;
  }
};

// This rank's, and every second one has room for exactly what comes.
void fill_rows(wire::Request* r, const Rows& rows, Rank rank, Rank size) {
  const bool gathers = r->kind == CollectiveKind::kAllgather;
  if (!gathers && r->kind != CollectiveKind::kAlltoall) return;
  int64_t comes = 0;
  r->shape = {0};
  for (Rank peer = 0; peer < size; ++peer) {
    comes += rows.of(peer, gathers ? 0 : rank);
    if (gathers) continue;
    r->splits.push_back(rows.of(rank, peer));
    r->shape[0] += r->splits.back();
  }
  if (gathers) r->shape[0] = rows.of(rank, 0);
  if (rank % 2 == 1) r->output_rows = comes;
}

// What the others do not agree with.
void make_wrong(wire::Request* r) {
  if (r->kind == CollectiveKind::kAllgather || r->kind == CollectiveKind::kAlltoall) {
    r->output_rows = 7777;
  } else {
    r->shape = {7777};
  }
}

}  // namespace

Job steady_job(Rank size, int steps, int tensors, bool blocking) {
  Job job;
  job.size = size;
  job.ranks.resize(static_cast<size_t>(size));
  std::mt19937_64 dice(static_cast<uint64_t>(size));
  Writer writer(&job, &dice);
  for (int step = 0; step < steps; ++step) {
    for (Rank rank = 0; rank < size; ++rank) {
      std::vector<std::vector<wire::Request>> units;
      for (int t = 0; t < tensors; ++t) {
        // Asynchronous steps are in another order each time: only what is fused makes a cycle then.
        constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllreduce, CollectiveKind::kAllgather,
                                             CollectiveKind::kAlltoall, CollectiveKind::kBroadcast,
                                             CollectiveKind::kReducescatter};
        units.push_back({request("t" + std::to_string(t), 4 + t, kKinds[blocking ? t % 5 : 0])});
        fill_rows(&units.back().front(), {}, rank, size);
      }
      writer.step(rank, units, blocking ? Mode::kBlocking : Mode::kAsync, step);
    }
  }
  for (auto& actions : job.ranks) actions.push_back({Action::Kind::kLeave, {}, "", steps});
  return job;
}

Job restless_job(uint64_t seed) {
  std::mt19937_64 dice(seed * 6007 + 5);
  const auto size = static_cast<Rank>(2 + dice() % 5);
  const auto tensors = static_cast<int>(1 + dice() % 4);
  Job job = steady_job(size, 60, tensors, dice() % 3 == 0);
  if (dice() % 2 == 0) job.config.fusion_threshold_bytes = 16;  // each tensor goes alone
  job.retune_at = static_cast<int64_t>(dice() % 300'000);
  job.retune_every = static_cast<int64_t>(50'000 + dice() % 300'000);
  return job;
}

Job random_job(uint64_t seed) {
  Job job;
  std::mt19937_64 dice(seed * 7919 + 1);
  Writer w(&job, &dice);
  job.size = static_cast<Rank>(1 + w.below(w.one_in(3) ? 6 : 4));
  job.ranks.resize(static_cast<size_t>(job.size));
  job.config.fusion_threshold_bytes = w.one_in(2) ? 64 << 20 : static_cast<int64_t>(w.below(200));
  if (w.one_in(4)) job.config.cache_capacity = static_cast<int64_t>(w.below(6));

  auto units = random_units(&w, 6, 5);
  const int steps = 6 + static_cast<int>(w.below(30));
  const uint64_t calm = w.one_in(2) ? 40 : 8;  // one step in so many is out of the ordinary
  const uint64_t metric_every = w.one_in(2) ? 2 + w.below(10) : 0;
  const bool twice = w.one_in(8);
  const Mode usual = w.one_in(3) ? Mode::kBlocking : w.one_in(5) ? Mode::kPolling : Mode::kAsync;
  const int leaves_at = w.one_in(6) ? static_cast<int>(w.below(static_cast<uint64_t>(steps))) : -1;
  const auto leaver = static_cast<Rank>(w.below(static_cast<uint64_t>(job.size)));
  job.someone_leaves = leaves_at >= 0;
  Rows rows;

  for (int step = 0; step < steps; ++step) {
    auto these = units;
    Rank odd = -1;  // goes another way than the others
    Mode odd_mode = Mode::kReversed;
    Mode mode = usual;
    Rank wrong = -1;
    Rows these_rows = rows;
    if (w.one_in(calm)) {
      switch (w.below(9)) {
        case 0:  // one is missing this time
          if (these.size() > 1)
            these.erase(these.begin() + static_cast<std::ptrdiff_t>(w.below(these.size())));
          break;
        case 1:  // a new one, from now on
          units.push_back({request("n" + std::to_string(step), 8)});
          these = units;
          break;
        case 2:  // another shape, from now on
          if (units[0].size() == 1) units[0][0].shape = {100 + step};
          these = units;
          break;
        case 3:  // one rank's shape is wrong, once
          if (job.size > 1 && these[0].size() == 1) {
            wrong = static_cast<Rank>(w.below(static_cast<uint64_t>(job.size)));
            ++job.mismatches;
          }
          break;
        case 4:  // one rank blocks on each in its own order; the others must not
          odd = static_cast<Rank>(w.below(static_cast<uint64_t>(job.size)));
          mode = Mode::kAsync;
          break;
        case 5:  // other rows, from now on
          ++rows.usual;
          these_rows = rows;
          break;
        case 6:  // of one rank, from now on
          rows.odd = static_cast<Rank>(w.below(static_cast<uint64_t>(job.size)));
          rows.of_odd = rows.usual + 1;
          these_rows = rows;
          break;
        case 7:  // of one rank, once
          these_rows.odd = static_cast<Rank>(w.below(static_cast<uint64_t>(job.size)));
          these_rows.of_odd = rows.usual + 1;
          break;
        default:
          odd = static_cast<Rank>(w.below(static_cast<uint64_t>(job.size)));
          odd_mode = Mode::kBlocking;
          mode = w.one_in(2) ? Mode::kPolling : Mode::kAsync;
      }
    }
    if (metric_every != 0 && static_cast<uint64_t>(step) % metric_every == 0) {
      const auto kind = w.one_in(2) ? CollectiveKind::kAllgather : CollectiveKind::kAllreduce;
      these.push_back({request("metric", 1, kind)});
    }
    for (Rank rank = 0; rank < job.size; ++rank) {
      if (step == leaves_at && rank == leaver) {
        job.ranks[static_cast<size_t>(rank)].push_back({Action::Kind::kLeave, {}, "", step});
      }
      auto mine = these;
      for (auto& unit : mine)
        for (wire::Request& r : unit) fill_rows(&r, these_rows, rank, job.size);
      if (rank == wrong) make_wrong(&mine[0][0]);
      w.step(rank, mine, rank == odd ? odd_mode : mode, step);
      if (twice) {
        w.step(rank, {{request("loss", 1)}}, Mode::kBlocking, step);
        w.step(rank, {{request("loss", 1)}}, Mode::kBlocking, step);
      }
    }
  }
  for (auto& actions : job.ranks) actions.push_back({Action::Kind::kLeave, {}, "", steps});
  if (w.one_in(6)) {
    job.crash_at = static_cast<int64_t>(w.below(3'000'000));
    job.crasher = static_cast<Rank>(w.below(static_cast<uint64_t>(job.size)));
  }
  if (w.one_in(8)) job.retune_at = static_cast<int64_t>(w.below(2'000'000));
  return job;
}

Job between_hosts(Job job, uint64_t seed) {
  std::mt19937_64 dice(seed * 3571 + 11);
  job.ranks_per_host = dice() % 3 == 0 && job.size > 2 ? 2 : 1;
  job.one_stream = dice() % 3 == 0;
  return job;
}

Job joining_job(uint64_t seed) {
  Job job;
  std::mt19937_64 dice(seed * 104729 + 3);
  Writer w(&job, &dice);
  job.joins = true;
  job.size = static_cast<Rank>(1 + w.below(4));
  job.ranks.resize(static_cast<size_t>(job.size));
  if (w.one_in(4)) job.config.cache_capacity = static_cast<int64_t>(w.below(6));
  auto units = random_units(&w, 4, 6);
  if (w.one_in(3)) units.push_back({request("rows", 3, CollectiveKind::kAllgather)});
  for (auto& unit : units)
    for (wire::Request& r : unit)
      if (r.kind == CollectiveKind::kAlltoall)
        r.splits.assign(static_cast<size_t>(job.size), 1), r.shape = {job.size};
  const Mode usual = w.one_in(3) ? Mode::kBlocking : w.one_in(5) ? Mode::kPolling : Mode::kAsync;
  wire::Request join;
  join.kind = CollectiveKind::kJoin;
  join.name = negotiation::kJoinName;
  int number = 0;
  const int phases = 1 + static_cast<int>(w.below(4));
  for (int phase = 0; phase < phases; ++phase) {
    const int most = static_cast<int>(w.below(25));
    for (Rank rank = 0; rank < job.size; ++rank) {
      const auto range = static_cast<uint64_t>(most + 1);
      const int steps = w.one_in(3) ? most : static_cast<int>(w.below(range));
      for (int step = 0; step < steps; ++step) w.step(rank, units, usual, number + step);
      auto& out = job.ranks[static_cast<size_t>(rank)];
      // The last step's waits come behind the join: it may still be under way.
      size_t at = out.size();
      if (steps > 0 && usual == Mode::kAsync && w.one_in(2)) {
        while (at > 0 && out[at - 1].kind == Action::Kind::kWait) --at;
      }
      out.insert(out.begin() + static_cast<std::ptrdiff_t>(at),
                 Action{Action::Kind::kSubmit, {join}, "", number + most});
      out.push_back({Action::Kind::kWait, {}, join.name, number + most});
    }
    number += most + 1;
  }
  for (auto& actions : job.ranks) actions.push_back({Action::Kind::kLeave, {}, "", number});
  if (w.one_in(8)) {
    job.crash_at = static_cast<int64_t>(w.below(3'000'000));
    job.crasher = static_cast<Rank>(w.below(static_cast<uint64_t>(job.size)));
  }
  if (w.one_in(8)) job.retune_at = static_cast<int64_t>(w.below(2'000'000));
  return job;
}

}  // namespace rueda::testing
