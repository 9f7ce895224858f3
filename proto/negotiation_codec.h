// Negotiation messages to wire format and back.
//
// encode: canonical bytes, the same that libprotobuf writes. Names are the caller's to check (valid
//   UTF-8, limits.h) when they are submitted; error texts are cut and cleaned here.
// decode: kDataLoss naming message and reason when the bytes are malformed, over a limit, or hold a
//   kind, dtype, op or code that does not exist. Unknown fields are skipped. *out is unspecified
//   after a failure. Nothing throws, nothing is shared: any thread.
#pragma once

#include <string>
#include <string_view>

#include "proto/codec.h"
#include "proto/messages.h"

namespace rueda::wire {
namespace detail {

inline bool is_kind(CollectiveKind kind) { return is_valid(kind); }

inline void write(Writer out, const Request& m) {
  out.put_bytes(1, m.name);
  out.put_enum(2, m.kind);
  out.put_enum(3, m.dtype);
  out.put_enum(4, m.reduce_op);
  out.put(5, m.shape);
  out.put_zigzag(6, m.root);
  out.put(7, m.prescale);
  out.put(8, m.postscale);
  out.put(9, m.splits);
  out.put_zigzag(10, m.device);
  out.put_bytes(11, m.group);
  out.put(12, m.group_size);
  out.put_bytes(13, m.layout);
  out.put_zigzag(14, m.output_rows);
  out.put(15, m.output_splits);
}

inline void read(Reader& in, Request* m) {
  // What is absent on the wire is zero, whatever the struct's own defaults are.
  m->dtype = DType{};
  m->reduce_op = ReduceOp{};
  m->prescale = m->postscale = 0.0;
  m->device = 0;
  m->output_rows = 0;
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read_text(&m->name, "name", kMaxNameBytes); break;
      case 2: in.read_enum(&m->kind, "kind", is_kind); break;
      case 3: in.read_enum(&m->dtype, "dtype", [](DType d) { return is_valid(d); }); break;
      case 4: in.read_enum(&m->reduce_op, "op", [](ReduceOp op) { return is_valid(op); }); break;
      case 5: in.append(&m->shape, "shape", kMaxDims); break;
      case 6: in.read_zigzag(&m->root); break;
      case 7: in.read(&m->prescale); break;
      case 8: in.read(&m->postscale); break;
      case 9: in.append(&m->splits, "splits", kMaxSplits); break;
      case 10: in.read_zigzag(&m->device); break;
      case 11: in.read_text(&m->group, "group", kMaxNameBytes); break;
      case 12: in.read(&m->group_size); break;
      case 13: in.read_text(&m->layout, "layout", kMaxLayoutBytes); break;
      case 14: in.read_zigzag(&m->output_rows); break;
      case 15: in.append(&m->output_splits, "output_splits", kMaxSplits); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const CallSite& m) {
  out.put_bytes(1, m.name);
  out.put_free_text(2, m.place, kMaxPlaceBytes);
}

inline void read(Reader& in, CallSite* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read_text(&m->name, "name", kMaxNameBytes); break;
      case 2: in.read_text(&m->place, "place", kMaxPlaceBytes); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const RequestList& m) {
  out.put(1, m.epoch);
  out.put(2, m.process_set);
  std::string inner;
  for (const Request& request : m.requests) {
    inner.clear();
    write(Writer(&inner), request);
    out.put_even_empty(3, inner);
  }
  out.put(4, m.cached);
  for (const std::string& name : m.awaited) out.put_even_empty(5, name);
  out.put(6, m.leaving);
  out.put(7, m.plan);
  out.put(8, m.joining);
  for (const CallSite& site : m.call_sites) {
    inner.clear();
    write(Writer(&inner), site);
    out.put_even_empty(9, inner);
  }
  out.put(10, m.evictions);
}

inline void read(Reader& in, RequestList* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->epoch); break;
      case 2: in.read(&m->process_set); break;
      case 3:
        in.append_message(&m->requests, "requests", kMaxRequests,
                          [](Reader& inner, Request* request) { read(inner, request); });
        break;
      case 4: in.append(&m->cached, "cached", kMaxRequests); break;
      case 5: in.append_text(&m->awaited, "awaited", kMaxRequests, kMaxNameBytes); break;
      case 6: in.read(&m->leaving); break;
      case 7: in.read(&m->plan); break;
      case 8: in.read(&m->joining); break;
      case 9:
        in.append_message(&m->call_sites, "call_sites", kMaxRequests,
                          [](Reader& inner, CallSite* site) { read(inner, site); });
        break;
      case 10: in.read(&m->evictions); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const ResponseEntry& m) {
  out.put_bytes(1, m.name);
  out.put_zigzag(2, m.cache_id);
  out.put(3, m.first_dims);
  out.put(4, m.splits);
  out.put_zigzag(5, m.absent);
  std::string inner;
  for (const Request& request : m.neutral) {
    inner.clear();
    write(Writer(&inner), request);
    out.put_even_empty(6, inner);
  }
}

inline void read(Reader& in, ResponseEntry* m) {
  m->cache_id = 0;
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read_text(&m->name, "name", kMaxNameBytes); break;
      case 2: in.read_zigzag(&m->cache_id); break;
      case 3: in.append(&m->first_dims, "first_dims", kMaxSplits); break;
      case 4: in.append(&m->splits, "splits", kMaxSplits); break;
      case 5: in.append_zigzag(&m->absent, "absent", kMaxRanks); break;
      case 6:
        in.append_message(&m->neutral, "neutral", 1,
                          [](Reader& inner, Request* request) { read(inner, request); });
        break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const LastWord& m) {
  out.put(1, m.epoch);
  out.put(2, m.process_set);
  out.put(15, m.generation);
  out.put(16, m.entered);
}

inline void read(Reader& in, LastWord* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->epoch); break;
      case 2: in.read(&m->process_set); break;
      case 15: in.read(&m->generation); break;
      case 16: in.read(&m->entered); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const GroupWord& m) {
  out.put(1, m.epoch);
  out.put_enum(17, m.what);
  out.put(18, m.number);
  out.put_bytes(19, m.key);
  out.put(20, m.ranks);
  out.put_zigzag(21, m.channels);
  out.put(22, m.calls);
  out.put_free_text(23, m.reason, kMaxErrorBytes);
  out.put_enum(24, m.code);
  out.put(25, m.tag);
  out.put(26, m.space);
}

inline void read(Reader& in, GroupWord* m) {
  m->what = {};
  m->channels = 0;
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->epoch); break;
      case 17:
        in.read_enum(&m->what, "what", [](GroupWord::What what) {
          return what >= GroupWord::What::kHello && what <= GroupWord::What::kGoes;
        });
        break;
      case 18: in.read(&m->number); break;
      case 19: in.read_text(&m->key, "key", kMaxGroupKeyBytes); break;
      case 20: in.append(&m->ranks, "ranks", kMaxRanks); break;
      case 21: in.read_zigzag(&m->channels); break;
      case 22: in.read(&m->calls); break;
      case 23: in.read_text(&m->reason, "reason", kMaxErrorBytes); break;
      case 24: in.read_enum(&m->code, "code", is_code); break;
      case 25: in.read(&m->tag); break;
      case 26: in.read(&m->space); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const GroupCall& m) {
  std::string inner;
  for (const Request& request : m.requests) {
    inner.clear();
    write(Writer(&inner), request);
    out.put_even_empty(1, inner);
  }
  out.put_free_text(2, m.place, kMaxPlaceBytes);
}

inline void read(Reader& in, GroupCall* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1:
        in.append_message(&m->requests, "requests", kMaxRequests,
                          [](Reader& inner, Request* request) { read(inner, request); });
        break;
      case 2: in.read_text(&m->place, "place", kMaxPlaceBytes); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const PlannedBatch& m) {
  out.put(1, m.ids);
  out.put(2, m.protocol);
}

inline void read(Reader& in, PlannedBatch* m, size_t max_ids) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.append(&m->ids, "ids", max_ids); break;
      case 2: in.read(&m->protocol); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const StepPlan& m) {
  out.put(1, m.generation);
  std::string inner;
  for (const PlannedBatch& batch : m.batches) {
    inner.clear();
    write(Writer(&inner), batch);
    out.put_even_empty(2, inner);
  }
}

inline void read(Reader& in, StepPlan* m) {
  size_t ids_left = kMaxPlanIds;
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->generation); break;
      case 2:
        in.append_message(&m->batches, "batches", kMaxPlanBatches,
                          [&](Reader& inner, PlannedBatch* batch) {
                            read(inner, batch, ids_left);
                            ids_left -= batch->ids.size();
                          });
        break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const Response& m) {
  out.put_enum(1, m.kind);
  std::string inner;
  for (const ResponseEntry& entry : m.entries) {
    inner.clear();
    write(Writer(&inner), entry);
    out.put_even_empty(2, inner);
  }
  out.put_free_text(3, m.error, kMaxErrorBytes);
  out.put_enum(4, m.error_code);
  out.put(5, m.protocol);
  for (const StepPlan& plan : m.freeze) {
    inner.clear();
    write(Writer(&inner), plan);
    out.put_even_empty(6, inner);
  }
  out.put_zigzag(7, m.last_joined);
  out.put(8, m.error_rank);
  out.put(9, m.error_of_group);
}

inline void read(Reader& in, Response* m, size_t max_entries = kMaxEntries) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read_enum(&m->kind, "kind", is_kind); break;
      case 2:
        in.append_message(&m->entries, "entries", max_entries,
                          [](Reader& inner, ResponseEntry* entry) { read(inner, entry); });
        break;
      case 3: in.read_text(&m->error, "error", kMaxErrorBytes); break;
      case 4: in.read_enum(&m->error_code, "error_code", is_code); break;
      case 5: in.read(&m->protocol); break;
      case 6:
        in.append_message(&m->freeze, "freeze", 1,
                          [](Reader& inner, StepPlan* plan) { read(inner, plan); });
        break;
      case 7: in.read_zigzag(&m->last_joined); break;
      case 8: in.read(&m->error_rank); break;
      case 9: in.read(&m->error_of_group); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const Stall& m) {
  out.put_bytes(1, m.name);
  out.put_zigzag(2, m.missing);
  out.put(3, m.seconds);
}

inline void read(Reader& in, Stall* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read_text(&m->name, "name", kMaxNameBytes); break;
      case 2: in.append_zigzag(&m->missing, "missing", kMaxRanks); break;
      case 3: in.read(&m->seconds); break;
      default: in.skip();
    }
  }
}

inline void write(Writer out, const ResponseList& m) {
  out.put(1, m.epoch);
  out.put(2, m.process_set);
  std::string inner;
  for (const Response& response : m.responses) {
    inner.clear();
    write(Writer(&inner), response);
    out.put_even_empty(3, inner);
  }
  for (const Stall& stall : m.stalls) {
    inner.clear();
    write(Writer(&inner), stall);
    out.put_even_empty(4, inner);
  }
  out.put(5, m.left);
  for (const std::string& name : m.where) out.put_even_empty(6, name);
  out.put_zigzag(7, m.left_before);
  out.put(8, m.evicted);
}

inline void read(Reader& in, ResponseList* m) {
  size_t entries_left = kMaxEntries;  // of all responses together: bounds the memory of one message
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->epoch); break;
      case 2: in.read(&m->process_set); break;
      case 3:
        in.append_message(&m->responses, "responses", kMaxResponses,
                          [&](Reader& inner, Response* response) {
                            read(inner, response, entries_left);
                            entries_left -= response->entries.size();
                          });
        break;
      case 4:
        in.append_message(&m->stalls, "stalls", kMaxStalls,
                          [](Reader& inner, Stall* stall) { read(inner, stall); });
        break;
      case 5: in.read(&m->left); break;
      case 6: in.append_text(&m->where, "where", kMaxRequests, kMaxNameBytes); break;
      case 7: in.read_zigzag(&m->left_before); break;
      case 8: in.append(&m->evicted, "evicted", kMaxEvicted); break;
      default: in.skip();
    }
  }
}

}  // namespace detail

// A Request's bytes are canonical, so equal requests have equal bytes.
inline std::string encode(const Request& m) { return detail::encode_any(m); }
inline std::string encode(const RequestList& m) { return detail::encode_any(m); }
inline std::string encode(const ResponseList& m) { return detail::encode_any(m); }

inline std::string encode(const LastWord& m) { return detail::encode_any(m); }
inline std::string encode(const GroupWord& m) { return detail::encode_any(m); }
inline std::string encode(const GroupCall& m) { return detail::encode_any(m); }

// Whose a RequestList, ResponseList or LastWord is, without reading the rest.
inline uint32_t process_set_of(std::string_view bytes) {
  try {
    detail::Reader in(bytes);
    uint32_t set = 0;
    while (in.next() && in.field() < 2) in.skip();
    if (in.field() == 2) in.read(&set);
    return set;
  } catch (...) {
    return 0;  // damaged: whoever decodes it says so
  }
}

// Neither of the lists, whose fields come in their order: behind the set comes field 15.
inline bool is_last_word(std::string_view bytes) {
  try {
    detail::Reader in(bytes);
    while (in.next() && in.field() <= 2) in.skip();
    return in.field() == 15;
  } catch (...) {
    return false;  // damaged: whoever decodes it says so
  }
}

// A message of the agreement has field 2 or a list's field behind the epoch.
inline bool is_group_word(std::string_view bytes) {
  try {
    detail::Reader in(bytes);
    while (in.next() && in.field() <= 1) in.skip();
    return in.field() == 17;
  } catch (...) {
    return false;  // damaged: whoever decodes it says so
  }
}

inline Status decode(std::string_view bytes, GroupWord* out) {
  return detail::decode_any("GroupWord", bytes, out);
}
inline Status decode(std::string_view bytes, GroupCall* out) {
  return detail::decode_any("GroupCall", bytes, out);
}
inline Status decode(std::string_view bytes, LastWord* out) {
  return detail::decode_any("LastWord", bytes, out);
}
inline Status decode(std::string_view bytes, Request* out) {
  return detail::decode_any("Request", bytes, out);
}
inline Status decode(std::string_view bytes, RequestList* out) {
  return detail::decode_any("RequestList", bytes, out);
}
inline Status decode(std::string_view bytes, ResponseList* out) {
  return detail::decode_any("ResponseList", bytes, out);
}

}  // namespace rueda::wire
