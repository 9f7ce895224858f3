#include "bindings/xla/frame.h"

namespace rueda::xla {
namespace {

// The first version that has futures on the CPU.
constexpr int kMajor = 0;
constexpr int kMinor = 1;

}  // namespace

bool is_metadata_asked(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start == nullptr ||
      frame->extension_start->type != XLA_FFI_Extension_Metadata) {
    return false;
  }
  auto* asked = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start);
  asked->metadata->api_version.major_version = kMajor;
  asked->metadata->api_version.minor_version = kMinor;
  return true;
}

XLA_FFI_Error* make_future(XLA_FFI_CallFrame* frame, FutureJoint* joint) {
  XLA_FFI_Future_Create_Args args = {XLA_FFI_Future_Create_Args_STRUCT_SIZE, nullptr, nullptr};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_Future_Create(&args)) return error;
  joint->future = frame->future = args.future;
  return nullptr;
}

}  // namespace rueda::xla
