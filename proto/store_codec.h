// Rendezvous messages to wire format and back; the promises are those of negotiation_codec.h.
#pragma once

#include <string>
#include <string_view>

#include "proto/codec.h"
#include "proto/messages.h"

namespace rueda::wire {
namespace detail {

inline void write(Writer out, const StoreRequest& m) {
  out.put(1, m.id);
  out.put_enum(2, m.op);
  out.put_bytes(3, m.key);
  out.put_bytes(4, m.value);
  out.put(5, m.timeout_ns);
  out.put_bytes(6, m.expected);
}

inline void read(Reader& in, StoreRequest* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->id); break;
      case 2: in.read_enum(&m->op, "op", [](StoreOp op) { return op <= StoreOp::kEnter; }); break;
      case 3: in.read_text(&m->key, "key", kMaxStoreKeyBytes); break;
      case 4: in.read_bytes(&m->value, "value", kMaxStoreValueBytes); break;
      case 5: in.read(&m->timeout_ns); break;
      case 6: in.read_bytes(&m->expected, "expected", kMaxStoreValueBytes); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const StoreReply& m) {
  out.put(1, m.id);
  out.put_enum(2, m.code);
  out.put_free_text(3, m.message, kMaxErrorBytes);
  out.put_bytes(4, m.value);
  out.put(5, m.number);
  out.put(6, m.error_rank);
}

inline void read(Reader& in, StoreReply* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->id); break;
      case 2: in.read_enum(&m->code, "code", is_code); break;
      case 3: in.read_text(&m->message, "message", kMaxErrorBytes); break;
      case 4: in.read_bytes(&m->value, "value", kMaxStoreValueBytes); break;
      case 5: in.read(&m->number); break;
      case 6: in.read(&m->error_rank); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const PlaceInfo& m) {
  out.put(1, m.version);
  out.put_zigzag(2, m.rank);
  out.put_zigzag(3, m.size);
  out.put(4, m.pid);
  out.put_free_text(5, m.host_name, kMaxAddressBytes);
  out.put_bytes(6, m.host_id);
  out.put_bytes(7, m.unix_address);
  out.put_bytes(8, m.tcp_address);
  out.put_bytes(9, m.agreed_settings);
  out.put_bytes(10, m.layout_hash);
}

inline void read(Reader& in, PlaceInfo* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->version); break;
      case 2: in.read_zigzag(&m->rank); break;
      case 3: in.read_zigzag(&m->size); break;
      case 4: in.read(&m->pid); break;
      case 5: in.read_text(&m->host_name, "host_name", kMaxAddressBytes); break;
      case 6: in.read_text(&m->host_id, "host_id", kMaxAddressBytes); break;
      case 7: in.read_text(&m->unix_address, "unix_address", kMaxAddressBytes); break;
      case 8: in.read_text(&m->tcp_address, "tcp_address", kMaxAddressBytes); break;
      case 9: in.read_text(&m->agreed_settings, "agreed_settings", kMaxSettingsBytes); break;
      case 10: in.read_text(&m->layout_hash, "layout_hash", kMaxAddressBytes); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const Standing& m) {
  out.put(1, m.member);
  out.put(2, m.epoch);
  out.put_enum(3, m.cause);
  out.put(4, m.has_state);
  out.put(5, m.commits);
  out.put_bytes(6, m.layout);
  out.put_free_text(7, m.version, kMaxAddressBytes);
  out.put_bytes(8, m.settings);
  out.put(9, m.pid);
  std::string inner;
  for (const std::vector<uint64_t>& members : m.process_sets) {
    inner.clear();
    Writer(&inner).put(1, members);
    out.put_even_empty(10, inner);
  }
  out.put(11, m.mirrors);
}

inline void read(Reader& in, Standing* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->member); break;
      case 2: in.read(&m->epoch); break;
      case 3:
        in.read_enum(&m->cause, "cause", [](EnterCause c) { return c <= EnterCause::kReady; });
        break;
      case 4: in.read(&m->has_state); break;
      case 5: in.read(&m->commits); break;
      case 6: in.read_bytes(&m->layout, "layout", kMaxDigestBytes); break;
      case 7: in.read_text(&m->version, "version", kMaxAddressBytes); break;
      case 8: in.read_text(&m->settings, "settings", kMaxSettingsBytes); break;
      case 9: in.read(&m->pid); break;
      case 10:
        in.append_message(&m->process_sets, "process_sets", kMaxProcessSets,
                          [](Reader& inner, std::vector<uint64_t>* members) {
                            while (inner.next()) {
                              if (inner.field() == 1)
                                inner.append(members, "members", kMaxMembers);
                              else
                                inner.skip();
                            }
                          });
        break;
      case 11: in.append(&m->mirrors, "mirrors", kMaxMembers); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const EpochMember& m) {
  out.put(1, m.member);
  out.put_free_text(2, m.host, kMaxAddressBytes);
  out.put_zigzag(3, m.last_rank);
  out.put(4, m.has_target);
}

inline void read(Reader& in, EpochMember* m) {
  m->last_rank = 0;  // as proto3 leaves it out
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->member); break;
      case 2: in.read_text(&m->host, "host", kMaxAddressBytes); break;
      case 3: in.read_zigzag(&m->last_rank); break;
      case 4: in.read(&m->has_target); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const NewEpoch& m) {
  out.put_enum(1, m.answer);
  out.put_free_text(2, m.text, kMaxErrorBytes);
  out.put(3, m.epoch);
  out.put_zigzag(4, m.rank);
  out.put_zigzag(5, m.size);
  out.put_enum(6, m.branch);
  out.put(7, m.target);
  out.put(8, m.announced);
  out.put(9, m.fresh_memory);
  out.put_free_text(10, m.tcp_address, kMaxAddressBytes);
  std::string inner;
  for (const EpochMember& member : m.members) {
    inner.clear();
    write(Writer(&inner), member);
    out.put_even_empty(11, inner);
  }
  for (const std::vector<int32_t>& ranks : m.process_sets) {
    inner.clear();
    Writer(&inner).put_zigzag(1, ranks);
    out.put_even_empty(12, inner);
  }
}

inline void read(Reader& in, NewEpoch* m) {
  m->size = 0;
  while (in.next()) {
    switch (in.field()) {
      case 1:
        in.read_enum(&m->answer, "answer",
                     [](EpochAnswer a) { return a <= EpochAnswer::kRefused; });
        break;
      case 2: in.read_text(&m->text, "text", kMaxErrorBytes); break;
      case 3: in.read(&m->epoch); break;
      case 4: in.read_zigzag(&m->rank); break;
      case 5: in.read_zigzag(&m->size); break;
      case 6:
        in.read_enum(&m->branch, "branch", [](EpochBranch b) { return b <= EpochBranch::kGoOn; });
        break;
      case 7: in.read(&m->target); break;
      case 8: in.read(&m->announced); break;
      case 9: in.read(&m->fresh_memory); break;
      case 10: in.read_text(&m->tcp_address, "tcp_address", kMaxAddressBytes); break;
      case 11:
        in.append_message(&m->members, "members", kMaxMembers,
                          [](Reader& inner, EpochMember* member) { read(inner, member); });
        break;
      case 12:
        in.append_message(&m->process_sets, "process_sets", kMaxProcessSets,
                          [](Reader& inner, std::vector<int32_t>* ranks) {
                            while (inner.next()) {
                              if (inner.field() == 1)
                                inner.append_zigzag(ranks, "ranks", kMaxMembers);
                              else
                                inner.skip();
                            }
                          });
        break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const StageSum& m) {
  out.put_free_text(1, m.name, kMaxAddressBytes);
  out.put(2, m.seconds);
  out.put(3, m.count);
}

inline void read(Reader& in, StageSum* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read_text(&m->name, "name", kMaxAddressBytes); break;
      case 2: in.read(&m->seconds); break;
      case 3: in.read(&m->count); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const Waited& m) {
  out.put_zigzag(1, m.rank);
  out.put(2, m.seconds);
  out.put(3, m.count);
}

inline void read(Reader& in, Waited* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read_zigzag(&m->rank); break;
      case 2: in.read(&m->seconds); break;
      case 3: in.read(&m->count); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const RankSummary& m) {
  out.put(1, m.seconds);
  std::string inner;
  for (const StageSum& stage : m.stages) {
    inner.clear();
    write(Writer(&inner), stage);
    out.put_even_empty(2, inner);
  }
  out.put(3, m.busy_seconds);
  out.put(4, m.overlapped_seconds);
  out.put(5, m.batches);
  out.put(6, m.planned_batches);
  out.put(7, m.bytes);
  for (const Waited& waited : m.waited) {
    inner.clear();
    write(Writer(&inner), waited);
    out.put_even_empty(8, inner);
  }
  out.put(9, m.resident_peak);
  out.put(10, m.heap_peak);
  out.put_zigzag(11, m.host);
  out.put_free_text(12, m.host_name, kMaxAddressBytes);
}

inline void read(Reader& in, RankSummary* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->seconds); break;
      case 2:
        in.append_message(&m->stages, "stages", kMaxStages,
                          [](Reader& inner, StageSum* stage) { read(inner, stage); });
        break;
      case 3: in.read(&m->busy_seconds); break;
      case 4: in.read(&m->overlapped_seconds); break;
      case 5: in.read(&m->batches); break;
      case 6: in.read(&m->planned_batches); break;
      case 7: in.read(&m->bytes); break;
      case 8:
        in.append_message(&m->waited, "waited", kMaxWaited,
                          [](Reader& inner, Waited* waited) { read(inner, waited); });
        break;
      case 9: in.read(&m->resident_peak); break;
      case 10: in.read(&m->heap_peak); break;
      case 11: in.read_zigzag(&m->host); break;
      case 12: in.read_text(&m->host_name, "host_name", kMaxAddressBytes); break;
      default: in.skip();
    }
  }
}

}  // namespace detail

inline std::string encode(const StoreRequest& m) { return detail::encode_any(m); }
inline std::string encode(const StoreReply& m) { return detail::encode_any(m); }
inline std::string encode(const PlaceInfo& m) { return detail::encode_any(m); }
inline std::string encode(const Standing& m) { return detail::encode_any(m); }
inline std::string encode(const NewEpoch& m) { return detail::encode_any(m); }
inline std::string encode(const RankSummary& m) { return detail::encode_any(m); }

inline Status decode(std::string_view bytes, StoreRequest* out) {
  return detail::decode_any("StoreRequest", bytes, out);
}
inline Status decode(std::string_view bytes, StoreReply* out) {
  return detail::decode_any("StoreReply", bytes, out);
}
inline Status decode(std::string_view bytes, PlaceInfo* out) {
  return detail::decode_any("PlaceInfo", bytes, out);
}
inline Status decode(std::string_view bytes, Standing* out) {
  return detail::decode_any("Standing", bytes, out);
}
inline Status decode(std::string_view bytes, NewEpoch* out) {
  return detail::decode_any("NewEpoch", bytes, out);
}
inline Status decode(std::string_view bytes, RankSummary* out) {
  return detail::decode_any("RankSummary", bytes, out);
}

}  // namespace rueda::wire
