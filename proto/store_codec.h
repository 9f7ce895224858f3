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
}

inline void read(Reader& in, StoreRequest* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->id); break;
      case 2: in.read_enum(&m->op, "op", [](StoreOp op) { return op <= StoreOp::kReport; }); break;
      case 3: in.read_text(&m->key, "key", kMaxStoreKeyBytes); break;
      case 4: in.read_bytes(&m->value, "value", kMaxStoreValueBytes); break;
      case 5: in.read(&m->timeout_ns); break;
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
}

inline void read(Reader& in, StoreReply* m) {
  while (in.next()) {
    switch (in.field()) {
      case 1: in.read(&m->id); break;
      case 2: in.read_enum(&m->code, "code", is_code); break;
      case 3: in.read_text(&m->message, "message", kMaxErrorBytes); break;
      case 4: in.read_bytes(&m->value, "value", kMaxStoreValueBytes); break;
      case 5: in.read(&m->number); break;
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

}  // namespace detail

inline std::string encode(const StoreRequest& m) { return detail::encode_any(m); }
inline std::string encode(const StoreReply& m) { return detail::encode_any(m); }
inline std::string encode(const PlaceInfo& m) { return detail::encode_any(m); }

inline Status decode(std::string_view bytes, StoreRequest* out) {
  return detail::decode_any("StoreRequest", bytes, out);
}
inline Status decode(std::string_view bytes, StoreReply* out) {
  return detail::decode_any("StoreReply", bytes, out);
}
inline Status decode(std::string_view bytes, PlaceInfo* out) {
  return detail::decode_any("PlaceInfo", bytes, out);
}

}  // namespace rueda::wire
