// What XLA hands to a custom call: attributes and buffers, and what it wants back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "bindings/xla/joint.h"
#include "bindings/xla/vendor/xla_ffi_c_api.inc"

namespace rueda::xla {

// XLA asks a handler for its version before it calls it; this answers.
bool is_metadata_asked(XLA_FFI_CallFrame* frame);

// The attributes of one call, by name.
class Attributes {
 public:
  explicit Attributes(const XLA_FFI_Attrs& attrs) : attrs_(attrs) {}

  template <typename T>
  T number(std::string_view name, T otherwise) const {
    const void* found = find(name, XLA_FFI_AttrType_SCALAR);
    if (found == nullptr) return otherwise;
    T value;
    std::memcpy(&value, static_cast<const XLA_FFI_Scalar*>(found)->value, sizeof value);
    return value;
  }

  std::string text(std::string_view name) const {
    const void* found = find(name, XLA_FFI_AttrType_STRING);
    if (found == nullptr) return {};
    const auto* span = static_cast<const XLA_FFI_ByteSpan*>(found);
    return {span->ptr, span->len};
  }

 private:
  const void* find(std::string_view name, XLA_FFI_AttrType type) const {
    for (int64_t i = 0; i < attrs_.size; ++i) {
      const XLA_FFI_ByteSpan& each = *attrs_.names[i];
      if (attrs_.types[i] == type && std::string_view(each.ptr, each.len) == name)
        return attrs_.attrs[i];
    }
    return nullptr;
  }

  const XLA_FFI_Attrs& attrs_;
};

// Buffers of a call, one after the other; not the token that an ordered one begins with.
class Buffers {
 public:
  Buffers(int64_t size, void** buffers) : at_(buffers), end_(buffers + size) {
    if (begin_with_token(size, buffers)) ++at_;
  }

  static bool begin_with_token(int64_t size, void** buffers) {
    return size > 0 &&
           static_cast<const XLA_FFI_Buffer*>(*buffers)->dtype == XLA_FFI_DataType_TOKEN;
  }

  size_t left() const { return static_cast<size_t>(end_ - at_); }
  const XLA_FFI_Buffer* next() { return static_cast<const XLA_FFI_Buffer*>(*at_++); }

 private:
  void** at_;
  void** end_;
};

// A joint of a call that was lowered for the place that its attributes "rank" and "size" say.
template <typename OfKind>
std::shared_ptr<OfKind> joint_of(const XLA_FFI_CallFrame* frame, const Attributes& attributes) {
  auto joint = std::make_shared<OfKind>();
  joint->api = frame->api;
  joint->rank = attributes.number<int32_t>("rank", -1);
  joint->size = attributes.number<int32_t>("size", -1);
  return joint;
}

// Gives XLA the future that the joint completes; an error if it has none.
XLA_FFI_Error* make_future(XLA_FFI_CallFrame* frame, FutureJoint* joint);

}  // namespace rueda::xla
