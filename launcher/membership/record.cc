// The record: what who takes over must know, in wire format behind a line that says what it is.
// Standings are not in it: who waits asks again. Nor are the times of replacements: counting begins
// anew. It may be older than what was said and done last, but for orders to start and answers of a
// new epoch: so what can have happened since is taken for granted.
#include "launcher/membership/state.h"
#include "proto/store_codec.h"

namespace rueda::launcher::membership {

using Decider = MembershipDecider;
using wire::detail::Reader;
using wire::detail::Writer;

namespace {

constexpr uint64_t kUnknownAnnouncements = 1 << 20;  // more than there can have been
constexpr std::string_view kFirstLine = "rueda membership 1\n";

void write(Writer out, const Member& m) {
  out.put(1, m.id);
  out.put_bytes(2, m.host);
  out.put_zigzag(3, m.slot);
  out.put(4, m.spare);
  out.put_enum(5, m.stage);
  out.put_zigzag(6, m.rank);
  out.put(7, m.answered);
  out.put(8, m.leaving);
  out.put(9, m.stopped);
  out.put(10, m.fenced);
  out.put_zigzag(11, m.expected.rank);
  out.put_zigzag(12, m.expected.size);
  out.put_zigzag(13, m.expected.local_rank);
  out.put_zigzag(14, m.expected.local_size);
  out.put_zigzag(15, m.expected.cross_rank);
  out.put_zigzag(16, m.expected.cross_size);
  out.put(17, m.instead_of ? *m.instead_of + 1 : 0);
}

void read(Reader& in, Member* m) {
  uint64_t instead_of = 0;
  m->rank = 0;
  m->expected = {0, 0, 0, 0, 0, 0};
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->id); break;
      case 2: in.read_text(&m->host, "host", wire::kMaxAddressBytes); break;
      case 3: in.read_zigzag(&m->slot); break;
      case 4: in.read(&m->spare); break;
      case 5: in.read_enum(&m->stage, "stage", [](Stage s) { return s <= Stage::kGone; }); break;
      case 6: in.read_zigzag(&m->rank); break;
      case 7: in.read(&m->answered); break;
      case 8: in.read(&m->leaving); break;
      case 9: in.read(&m->stopped); break;
      case 10: in.read(&m->fenced); break;
      case 11: in.read_zigzag(&m->expected.rank); break;
      case 12: in.read_zigzag(&m->expected.size); break;
      case 13: in.read_zigzag(&m->expected.local_rank); break;
      case 14: in.read_zigzag(&m->expected.local_size); break;
      case 15: in.read_zigzag(&m->expected.cross_rank); break;
      case 16: in.read_zigzag(&m->expected.cross_size); break;
      case 17: in.read(&instead_of); break;
      default: in.skip();
    }
  }
  if (instead_of != 0) m->instead_of = instead_of - 1;
}

void write(Writer out, const HostTable::Host& h, Time now) {
  out.put_bytes(1, h.name);
  out.put_zigzag(2, h.slots);
  out.put_zigzag(3, h.failures);
  out.put(4, h.listed);
  out.put(5, h.drained);
  out.put(6, h.blacklisted);
  out.put(7, h.back.has_value());
  out.put(8, h.back ? Seconds(*h.back - now).count() : 0.0);
}

void read(Reader& in, HostTable::Host* h) {
  bool comes_back = false;
  double seconds = 0;
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read_text(&h->name, "name", wire::kMaxAddressBytes); break;
      case 2: in.read_zigzag(&h->slots); break;
      case 3: in.read_zigzag(&h->failures); break;
      case 4: in.read(&h->listed); break;
      case 5: in.read(&h->drained); break;
      case 6: in.read(&h->blacklisted); break;
      case 7: in.read(&comes_back); break;
      case 8: in.read(&seconds); break;
      default: in.skip();
    }
  }
  if (comes_back) h->back = Time{} + std::chrono::ceil<Time::duration>(Seconds(seconds));
}

// All that is one value; written and read by the same list.
template <typename Each, typename S>
void numbers(S& s, const Each& each) {
  each(1, s.epoch);
  each(2, s.next_member);
  each(3, s.serial);
  each(4, s.served);
  each(5, s.known_commits);
  each(6, s.heal_commits);
}

}  // namespace

std::string Decider::State::record() const {
  std::string bytes(kFirstLine);
  Writer out(&bytes);
  numbers(*this, [&](uint32_t field, uint64_t value) { out.put(field, value); });
  out.put_enum(7, phase);
  out.put(8, trained);
  out.put(9, finishing);
  out.put_zigzag(10, resets);
  out.put_zigzag(11, heals);
  out.put(12, by_loss);
  out.put(13, lost_first ? *lost_first + 1 : 0);
  out.put(14, first_failed ? *first_failed + 1 : 0);
  out.put_zigzag(15, first_code.value_or(0));
  out.put_free_text(16, first_how, wire::kMaxErrorBytes);
  out.put_free_text(17, culprit, wire::kMaxErrorBytes);
  out.put_free_text(18, version, wire::kMaxAddressBytes);
  out.put_bytes(19, settings);
  if (current) out.put_even_empty(20, wire::encode(*current));
  out.put(21, ranks);
  std::string inner;
  for (const auto& [id, member] : members) {
    inner.clear();
    write(Writer(&inner), member);
    out.put_even_empty(22, inner);
  }
  for (const HostTable::Host& host : hosts.hosts()) {
    inner.clear();
    write(Writer(&inner), host, now);
    out.put_even_empty(23, inner);
  }
  for (const auto& [host, slot] : slots.barred()) {
    inner.clear();
    Writer one(&inner);
    one.put_bytes(1, host);
    one.put_zigzag(2, slot);
    out.put_even_empty(24, inner);
  }
  out.put(25, end_at.has_value());
  out.put_free_text(26, end_text, wire::kMaxErrorBytes);
  out.put_zigzag(27, end_code);
  out.put_free_text(28, who_finished, wire::kMaxErrorBytes);
  out.put(29, rest_since.has_value());
  return bytes;
}

bool Decider::State::restore(std::string_view bytes) {
  if (!bytes.starts_with(kFirstLine)) return false;
  std::vector<Member> all;
  std::vector<HostTable::Host> table;
  std::vector<std::pair<std::string, int>> barred;
  std::string epoch_bytes;
  uint64_t lost = 0;
  uint64_t failed = 0;
  int code = 0;
  bool was_by_loss = false;
  bool fails = false;
  bool rests = false;
  std::string how, whose;
  try {
    Reader in(bytes.substr(kFirstLine.size()));
    while (in.next()) {
      numbers(*this, [&](uint32_t field, uint64_t& value) {
        if (in.field() == field) in.read(&value);
      });
      switch (in.field()) {
        case 1:
        case 2:
        case 3:
        case 4:
        case 5:
        case 6: break;
        case 7: in.read_enum(&phase, "phase", [](Phase p) { return p <= Phase::kOver; }); break;
        case 8: in.read(&trained); break;
        case 9: in.read(&finishing); break;
        case 10: in.read_zigzag(&resets); break;
        case 11: in.read_zigzag(&heals); break;
        case 12: in.read(&was_by_loss); break;
        case 13: in.read(&lost); break;
        case 14: in.read(&failed); break;
        case 15: in.read_zigzag(&code); break;
        case 16: in.read_text(&how, "how", wire::kMaxErrorBytes); break;
        case 17: in.read_text(&whose, "culprit", wire::kMaxErrorBytes); break;
        case 18: in.read_text(&version, "version", wire::kMaxAddressBytes); break;
        case 19: in.read_bytes(&settings, "settings", wire::kMaxSettingsBytes); break;
        case 20: in.read_bytes(&epoch_bytes, "epoch", bytes.size()); break;
        case 21: in.append(&ranks, "ranks", wire::kMaxMembers); break;
        case 22:
          in.append_message(&all, "members", wire::kMaxMembers * 2,
                            [](Reader& inner, Member* member) { read(inner, member); });
          break;
        case 23:
          in.append_message(&table, "hosts", wire::kMaxMembers,
                            [](Reader& inner, HostTable::Host* host) { read(inner, host); });
          break;
        case 24:
          in.append_message(&barred, "barred", wire::kMaxMembers,
                            [](Reader& inner, std::pair<std::string, int>* one) {
                              while (inner.next()) {
                                if (inner.field() == 1)
                                  inner.read_text(&one->first, "host", wire::kMaxAddressBytes);
                                else if (inner.field() == 2)
                                  inner.read_zigzag(&one->second);
                                else
                                  inner.skip();
                              }
                            });
          break;
        case 25: in.read(&fails); break;
        case 26: in.read_text(&end_text, "end", wire::kMaxErrorBytes); break;
        case 27: in.read_zigzag(&end_code); break;
        case 28: in.read_text(&who_finished, "finished", wire::kMaxErrorBytes); break;
        case 29: in.read(&rests); break;
        default: in.skip();
      }
    }
  } catch (const wire::detail::Refused&) {
    return false;
  } catch (const protozero::exception&) {
    return false;
  }
  if (phase != Phase::kGathering) {
    auto epoch_now = std::make_shared<wire::NewEpoch>();
    if (!wire::decode(epoch_bytes, epoch_now.get()).ok()) return false;
    current = std::move(epoch_now);
  }
  for (const Member& member : all) members[member.id] = member;
  for (const MemberId id : ranks) {
    if (members.count(id) == 0) return false;
  }
  hosts.restore(std::move(table));
  for (const auto& [host, slot] : barred) slots.bar(host, slot);
  if (failed != 0) first_failed = failed - 1;
  if (code != 0) first_code = code;
  first_how = how;
  for (const auto& [id, member] : members) {
    if (member.is_newcomer()) newcomers.insert(id);
  }
  for (const MemberId id : ranks) {
    const Member& member = members.at(id);
    if (!member.lives()) continue;
    ++alive;
    unanswered += member.answered ? 0 : 1;
    if (member.leaving) leaving.insert(id);
  }
  culprit = whose;
  by_loss = was_by_loss;
  if (lost != 0) lost_first = lost - 1;
  if (fails) end_at = Time{};  // from the next event on
  if (rests) rest_since = Time{};
  // Since then there may have been a state, and announcements.
  trained = phase != Phase::kGathering;
  serial += kUnknownAnnouncements;
  resumed = took_over = seats_dirty = true;
  return true;
}

// Orders that may have been lost: who has them already, does nothing.
void Decider::State::repeat_orders() {
  if (phase == Phase::kOver) return do_(EndJob{end_code, end_text});
  if (end_at) end_at = after(now, policy.fence_patience);
  for (const auto& [id, member] : members) {
    if (member.stopped && !member.lives() && !member.fenced)
      do_(StopMember{id, "the job has gone on without this rank"});
    if (member.stage == Stage::kStarting)
      do_(StartMember{id, member.host, member.slot, member.expected, member.spare});
  }
  if (epoch == 1) start_first();
}

// The members of an epoch that was over may not have heard of it.
void Decider::State::repeat_end() {
  if (phase != Phase::kEnding) return;
  const bool was_by_loss = by_loss;
  const std::string whose = culprit;
  const std::optional<MemberId> lost = lost_first;
  begin_ending();
  culprit = whose;
  lost_first = lost;
  by_loss = was_by_loss;
  last_loss = now;
  for (const MemberId id : ranks) {
    const Member& member = members.at(id);
    if (member.stage == Stage::kGone && !member.fenced) unfenced[id] = now;
  }
  if (!by_loss || !lost) return;
  told_end = true;
  do_(EndEpoch{epoch, *lost});
}

}  // namespace rueda::launcher::membership
