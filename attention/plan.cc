#include "attention/plan.h"

#include <algorithm>

#include "attention/program.h"
#include "attention/tiles.h"
#include "attention/wire.h"
#include "attention/workspace.h"

namespace rueda::attention {
namespace {

// Tokens of the ranks of one Ulysses group, in the order of the ranks.
std::vector<Run> group_tokens(const AttentionSpec& spec, Rank group, bool keys) {
  std::vector<Run> result;
  for (Rank u = 0; u < spec.ulysses; ++u) {
    const Rank rank = group * spec.ulysses + u;
    for (const Run& run : keys ? key_tokens_of(spec, rank) : tokens_of(spec, rank))
      append(&result, run);
  }
  return result;
}

// The rows of the travelling side that the tiles touch, for each KV head of the part or for all at
// once.
std::vector<RowSet> rows_of(const AttentionPlan& plan, const std::vector<Tile>& tiles,
                            bool keys_travel, const Part& part, int64_t count) {
  std::vector<RowSet> sets;
  if (tiles.empty()) return sets;
  std::vector<char> marks;
  const bool each = plan.spec.mask.depends_on_head();
  const int64_t heads_end = each ? part.head_end : part.head_begin + 1;
  for (int64_t head = part.head_begin; head < heads_end; ++head) {
    marks.assign(static_cast<size_t>(count), 0);
    for (const Tile& tile : tiles) {
      if (head < tile.head_begin || head >= tile.head_end ||
          (head - tile.head_begin) % tile.head_step != 0) {
        continue;
      }
      const Run& run = keys_travel ? tile.k : tile.q;
      for (int64_t i = 0; i < run.count; ++i) marks[static_cast<size_t>(run.at(i))] = 1;
    }
    RowSet set;
    set.head_begin = head;
    set.head_end = each ? head + 1 : part.head_end;
    for (int64_t i = 0; i < count; ++i) {
      if (marks[static_cast<size_t>(i)] != 0) append(&set.rows, {i, 1, 1});
    }
    if (!set.rows.empty()) sets.push_back(std::move(set));
  }
  return sets;
}

Rotate choose(const AttentionSpec& spec, bool backward) {
  const Rotate asked = backward ? spec.rotate_backward : spec.rotate_forward;
  if (asked != Rotate::kAuto) return asked;
  const int64_t group = spec.heads / spec.kv_heads;
  const RowBytes keys = row_bytes(spec, backward, Rotate::kKeysAndValues, group);
  const RowBytes queries = row_bytes(spec, backward, Rotate::kQueries, group);
  const bool fewer =
      (queries.out + queries.back) * spec.length < (keys.out + keys.back) * spec.keys();
  return fewer ? Rotate::kQueries : Rotate::kKeysAndValues;
}

RingPlan ring_of(const AttentionPlan& plan, const Components& components, bool backward) {
  const AttentionSpec& spec = plan.spec;
  RingPlan ring;
  ring.rotate = choose(spec, backward);
  const bool keys_travel = ring.rotate == Rotate::kKeysAndValues;
  const Rank rings = spec.rings();
  const Rank mine = plan.rank / spec.ulysses;
  int64_t most = 0;  // tokens of the largest group
  for (Rank group = 0; group < rings; ++group)
    most = std::max(most, total(group_tokens(spec, group, keys_travel)));
  const Part whole = plan.all_rows(most);
  const std::vector<Part> parts =
      rings == 1 ? std::vector<Part>{whole} : parts_of(whole, spec.chunk_tokens);
  for (const Part& part : parts) {
    for (Tile& tile : tiles_of(plan, components, plan.tokens, plan.key_tokens, keys_travel, part))
      ring.local.push_back(tile);
    ring.local_ends.push_back(ring.local.size());
  }
  const Rank place = plan.rank % spec.ulysses;
  ring.answered = row_bytes(spec, backward, ring.rotate, 1).back > 0;
  // A chunk that was asked for is a bound of memory; the last messages stay as large then. Where
  // answers go back, they travel while the last piece of what is at home is computed.
  const bool taper =
      spec.chunk_tokens == 0 && !spec.gather_first && parts.size() > 1 && !ring.answered;
  for (Rank step = 1; step < rings; ++step) {
    const Rank from = (mine - step + rings) % rings;
    const Rank to = (mine + step) % rings;
    const std::vector<Run> theirs = group_tokens(spec, from, keys_travel);
    const std::vector<Run> receiver = group_tokens(spec, to, !keys_travel);
    for (const Part& part : taper&& step == rings - 1 ? tapered(parts) : parts) {
      const int64_t key = ring.keys++;
      Hop in{from * spec.ulysses + place, key, step, {}, {}};
      in.tiles = keys_travel ? tiles_of(plan, components, plan.tokens, theirs, true, part)
                             : tiles_of(plan, components, theirs, plan.key_tokens, false, part);
      in.rows = rows_of(plan, in.tiles, keys_travel, part, total(theirs));
      if (!in.tiles.empty()) ring.receives.push_back(std::move(in));
      Hop out{to * spec.ulysses + place, key, step, {}, {}};
      const auto needed = keys_travel
                              ? tiles_of(plan, components, receiver, plan.key_tokens, true, part)
                              : tiles_of(plan, components, plan.tokens, receiver, false, part);
      out.rows = rows_of(plan, needed, keys_travel, part,
                         keys_travel ? plan.group_keys() : plan.group_tokens());
      if (!needed.empty()) ring.sends.push_back(std::move(out));
    }
  }
  return ring;
}

void add_ring(const AttentionPlan& plan, bool backward, PlanReport* report) {
  const RingPlan& ring = backward ? plan.backward : plan.forward;
  int64_t sent = 0, received = 0;
  for (const Hop& hop : ring.sends) {
    const RowBytes bytes = hop_bytes(plan, backward, hop);
    sent += bytes.out;
    received += bytes.back;
  }
  int64_t answers = 0;
  for (const Hop& hop : ring.receives) {
    const RowBytes bytes = hop_bytes(plan, backward, hop);
    received += bytes.out;
    sent += bytes.back;
    answers += bytes.back > 0 ? 1 : 0;
  }
  const auto messages = static_cast<int64_t>(ring.sends.size()) + answers;
  (backward ? report->messages_sent_backward : report->messages_sent_forward) += messages;
  (backward ? report->bytes_sent_backward : report->bytes_sent_forward) += sent;
  (backward ? report->bytes_received_backward : report->bytes_received_forward) += received;
}

// The exchanges of heads for tokens and back.
void add_exchange(const AttentionPlan& plan, PlanReport* report) {
  const AttentionSpec& spec = plan.spec;
  const int64_t d = spec.head_dim, e = static_cast<int64_t>(size_of(spec.dtype));
  const int64_t gradient = replicates_kv(spec) ? 4 : e;
  const auto q_heads = [](const HeadShare& s) { return s.q_end - s.q_begin; };
  const auto kv_heads = [](const HeadShare& s) { return s.kv_end - s.kv_begin; };
  for (Rank u = 0; u < spec.ulysses; ++u) {
    const Rank peer = plan.group_begin() + u;
    if (peer == plan.rank) continue;
    const HeadShare theirs = heads_of(spec, u);
    const int64_t c = plan.own_tokens() * spec.batch;
    const int64_t c_theirs = token_count(spec, peer) * spec.batch;
    const int64_t keys = plan.own_keys() * spec.batch,
                  keys_theirs = key_count(spec, peer) * spec.batch;
    const auto in = [&](int64_t rows, int64_t key_rows, const HeadShare& to) {
      return rows * q_heads(to) * d * e + key_rows * 2 * kv_heads(to) * d * e;
    };
    const auto out = [&](int64_t rows, const HeadShare& of) {
      return rows * q_heads(of) * (d * e + 4);
    };
    const auto gradients = [&](int64_t rows, int64_t key_rows, const HeadShare& of) {
      return rows * q_heads(of) * d * e + key_rows * 2 * kv_heads(of) * d * gradient;
    };
    const int64_t inward = in(c, keys, theirs), result = out(c_theirs, plan.heads);
    const int64_t douts = out(c, theirs), sums = gradients(c_theirs, keys_theirs, plan.heads);
    report->bytes_sent_forward += inward + result;
    report->bytes_received_forward += in(c_theirs, keys_theirs, plan.heads) + out(c, theirs);
    report->bytes_sent_backward += douts + sums;
    report->bytes_received_backward += out(c_theirs, plan.heads) + gradients(c, keys, theirs);
    report->messages_sent_forward += (inward > 0) + (result > 0);
    report->messages_sent_backward += (douts > 0) + (sums > 0);
  }
}

int64_t flops_of(const AttentionPlan& plan, const std::vector<Tile>& tiles) {
  int64_t flops = 0;
  for (const Tile& tile : tiles) {
    for (int64_t h = tile.head_begin; h < tile.head_end; h += tile.head_step) {
      flops += tile.pairs * plan.heads.queries_of(h, plan.head_group()) * 4 * plan.spec.head_dim;
    }
  }
  return flops * plan.spec.batch;
}

int64_t flops_of(const AttentionPlan& plan, const RingPlan& ring) {
  int64_t flops = flops_of(plan, ring.local);
  for (const Hop& hop : ring.receives) flops += flops_of(plan, hop.tiles);
  return flops;
}

}  // namespace

int64_t HeadShare::queries_of(int64_t h, int64_t group) const {
  return std::max<int64_t>(0, std::min(q_end, (h + 1) * group) - std::max(q_begin, h * group));
}

bool replicates_kv(const AttentionSpec& spec) { return spec.kv_heads < spec.ulysses; }

HeadShare heads_of(const AttentionSpec& spec, Rank place) {
  HeadShare share;
  const int64_t group = spec.heads / spec.kv_heads;
  if (!replicates_kv(spec)) {
    share.kv_begin = split_begin(spec.kv_heads, place, spec.ulysses);
    share.kv_end = share.kv_begin + split_rows(spec.kv_heads, place, spec.ulysses);
    share.q_begin = share.kv_begin * group;
    share.q_end = share.kv_end * group;
    return share;
  }
  share.q_begin = split_begin(spec.heads, place, spec.ulysses);
  share.q_end = share.q_begin + split_rows(spec.heads, place, spec.ulysses);
  share.kv_begin = share.q_begin / group;
  share.kv_end = share.q_end == share.q_begin ? share.kv_begin : (share.q_end - 1) / group + 1;
  return share;
}

// A step's messages to a piece. On a link as slow as the arithmetic the first message takes as long
// as two pieces, hence the first piece and one exchange of the second before it. Where the link
// also carries answers it comes earlier, and the last piece fills the time until the last answer
// has left.
std::span<const Tile> AttentionPlan::local_tiles(const RingPlan& ring, int64_t key) const {
  const int64_t each = std::max<int64_t>(1, spec.rings() - 1);
  const auto due = [&](size_t piece) {
    const auto number = static_cast<int64_t>(piece);
    if (!ring.answered) return std::max<int64_t>(0, number * each - 1);
    return piece > 0 && piece + 1 == ring.local_ends.size() ? ring.keys : number * each;
  };
  size_t begin = 0, end = 0;
  for (size_t piece = 0; piece < ring.local_ends.size() && due(piece) <= key; ++piece) {
    if (due(piece) < key) begin = ring.local_ends[piece];
    end = ring.local_ends[piece];
  }
  return std::span(ring.local).subspan(begin, end - begin);
}

int64_t AttentionPlan::own_tokens() const { return token_count(spec, rank); }
int64_t AttentionPlan::own_keys() const { return key_count(spec, rank); }

RowBytes row_bytes(const AttentionSpec& spec, bool backward, Rotate rotate, int64_t queries) {
  const int64_t d = spec.head_dim, e = static_cast<int64_t>(size_of(spec.dtype));
  if (rotate == Rotate::kKeysAndValues) return {wire_bytes(spec), backward ? 2 * d * 4 : 0};
  if (backward) return {queries * (2 * d * e + 8), queries * d * 4};
  return {queries * d * e, queries * (d * 4 + 8)};
}

RowBytes hop_bytes(const AttentionPlan& plan, bool backward, const Hop& hop) {
  const Rotate rotate = (backward ? plan.backward : plan.forward).rotate;
  RowBytes bytes;
  for (const RowSet& set : hop.rows) {
    const int64_t rows = total(set.rows) * plan.spec.batch;
    for (int64_t h = set.head_begin; h < set.head_end; ++h) {
      const int64_t queries = plan.heads.queries_of(h, plan.head_group());
      const RowBytes one = row_bytes(plan.spec, backward, rotate, queries);
      bytes.out += rows * one.out;
      bytes.back += rows * one.back;
    }
  }
  return bytes;
}

Result<AttentionPlan> make_plan(const AttentionSpec& spec, Rank rank) {
  RUEDA_RETURN_IF_ERROR(check(spec));
  if (rank < 0 || rank >= spec.ranks) {
    return invalid_argument("attention: no rank " + std::to_string(rank) + " of " +
                            std::to_string(spec.ranks));
  }
  AttentionPlan plan;
  plan.spec = spec;
  plan.rank = rank;
  plan.band = band_of(spec.mask);
  plan.heads = heads_of(spec, rank % spec.ulysses);
  plan.tokens = group_tokens(spec, rank / spec.ulysses, false);
  plan.key_tokens = group_tokens(spec, rank / spec.ulysses, true);
  const Components components(spec);
  plan.programs = std::make_shared<Programs>();
  plan.forward = ring_of(plan, components, false);
  plan.backward = ring_of(plan, components, true);
  PlanReport& report = plan.report;
  report.hash = hash_of(spec);
  report.steps = spec.rings();
  report.tiles = static_cast<int64_t>(plan.forward.local.size());
  for (const Hop& hop : plan.forward.receives)
    report.tiles += static_cast<int64_t>(hop.tiles.size());
  add_ring(plan, false, &report);
  add_ring(plan, true, &report);
  if (spec.ulysses > 1) add_exchange(plan, &report);
  report.flops_forward = flops_of(plan, plan.forward);
  report.flops_backward = flops_of(plan, plan.backward) / 4 * 10;
  const Workspace workspace = workspace_of(plan);
  report.saved_bytes = workspace.saved;
  report.workspace_forward = workspace.forward;
  report.workspace_backward = workspace.backward;
  return plan;
}

double balance(const AttentionSpec& spec) {
  const Components components(spec);
  int64_t most = 0, sum = 0;
  for (Rank rank = 0; rank < spec.ranks; ++rank) {
    AttentionPlan plan;
    plan.spec = spec;
    plan.rank = rank;
    plan.band = band_of(spec.mask);
    plan.heads = heads_of(spec, rank % spec.ulysses);
    plan.tokens = group_tokens(spec, rank / spec.ulysses, false);
    int64_t flops = 0;
    for (Rank group = 0; group < spec.rings(); ++group) {
      flops += flops_of(plan, tiles_of(plan, components, plan.tokens,
                                       group_tokens(spec, group, true), true, plan.all_rows()));
    }
    most = std::max(most, flops);
    sum += flops;
  }
  return sum == 0 ? 1.0 : static_cast<double>(most) * spec.ranks / static_cast<double>(sum);
}

}  // namespace rueda::attention
