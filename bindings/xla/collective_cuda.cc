// "rueda_collective" for XLA's platform CUDA: buffers are a GPU's, and results come in the order of
// the stream that XLA gives.
//
// The operations come behind what the stream has been given, and what it is given after the call
// comes behind them. XLA's thread waits until all have been given to the GPU, which takes as long
// as the last rank takes to come; it does not wait for the GPU.
#include <rueda/rueda.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/xla/collective.h"

namespace rueda::xla {
namespace {

struct StreamJoint : WaitedJoint {
  int32_t after(const Member& member, rueda_error* why) override {
    for (rueda_request* each : member.requests) {
      const int32_t bad = rueda_request_stream_wait(each, stream, why);
      if (bad != RUEDA_OK) return bad;
    }
    return RUEDA_OK;
  }

  void* stream = nullptr;
};

XLA_FFI_Error* collective_cuda(XLA_FFI_CallFrame* frame) {
  if (is_metadata_asked(frame)) return nullptr;
  XLA_FFI_Stream_Get_Args of_stream = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame->ctx,
                                       nullptr};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_Stream_Get(&of_stream)) return error;
  XLA_FFI_DeviceOrdinal_Get_Args of_device = {XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, nullptr,
                                              frame->ctx, 0};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_DeviceOrdinal_Get(&of_device)) return error;
  const Attributes attributes(frame->attrs);
  const auto joint = joint_of<StreamJoint>(frame, attributes);
  joint->stream = of_stream.stream;
  std::vector<std::unique_ptr<calls::Call>> members;
  if (XLA_FFI_Error* error = read_members(frame, attributes, joint, &members)) return error;
  if (members.empty()) return nullptr;
  for (const auto& member : members) {
    for (rueda_op& op : member->ops) {
      if (op.kind == RUEDA_BARRIER) continue;
      op.device = of_device.device_ordinal;
      op.stream = of_stream.stream;
    }
  }
  calls::Calls::instance().submit(std::move(members), 0);  // patience would wait for the GPU, too
  if (const int32_t bad = joint->wait()) return make_error(frame->api, bad, joint->error.message);
  return nullptr;
}

}  // namespace
}  // namespace rueda::xla

extern "C" {

RUEDA_API XLA_FFI_Error* rueda_xla_collective_cuda(XLA_FFI_CallFrame* frame) {
  return rueda::xla::collective_cuda(frame);
}
}
