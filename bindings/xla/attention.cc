// The custom call "rueda_attention" of XLA: a forward or a backward of distributed attention. Ranks
// start theirs in the same order, which the token that all of them pass on sees to.
#include <rueda/rueda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/xla/frame.h"
#include "bindings/xla/joint.h"

namespace rueda::xla {
namespace {

// Buffers of a forward: q, k, v -> out, lse [, what it keeps];
// of a backward: dout, q, k, v, out, lse, what its forward has kept [, dlse] -> dq, dk, dv.
constexpr size_t kForward[] = {3, 2};
constexpr size_t kBackward[] = {7, 3};

struct Release {
  void operator()(rueda_attention_saved* saved) const { rueda_attention_saved_release(saved); }
};
using Saved = std::unique_ptr<rueda_attention_saved, Release>;

struct AttentionCall : Member {
  const rueda_attention_plan* plan = nullptr;  // lives as long as the program
  int32_t process_set = 0;
  int32_t threads = 0;
  bool is_local = false;  // of this process alone, which need not be in a job
  bool is_backward = false;
  std::vector<void*> inputs;
  std::vector<void*> outputs;
  Saved saved;  // of a forward that keeps it

  bool may_start(rueda_context* context) override { return is_local || Member::may_start(context); }

  int32_t begin(rueda_context* context, double) override {
    requests.assign(1, nullptr);
    rueda_context* job = is_local ? nullptr : context;
    const auto& in = inputs;
    if (!is_backward) {
      rueda_attention_saved* kept = nullptr;
      const int32_t started = rueda_attention_forward(
          job, plan, process_set, threads, in[0], in[1], in[2], outputs[0],
          static_cast<float*>(outputs[1]), keeps() ? &kept : nullptr, requests.data(), &error);
      saved.reset(kept);
      return started;
    }
    rueda_attention_saved* kept = nullptr;
    if (const int32_t bad = rueda_attention_saved_read(plan, in[6], &kept, &error)) return bad;
    const Saved given(kept);
    const auto* dlse = in.size() > kBackward[0] ? static_cast<const float*>(in[7]) : nullptr;
    return rueda_attention_backward(job, plan, process_set, threads, in[0], dlse, in[1], in[2],
                                    in[3], in[4], static_cast<const float*>(in[5]), given.get(),
                                    outputs[0], outputs[1], outputs[2], requests.data(), &error);
  }

  void complete() override {
    if (code == RUEDA_OK && saved != nullptr)
      code = rueda_attention_saved_write(plan, saved.get(), outputs[2], &error);
    Member::complete();
  }

 private:
  bool keeps() const { return outputs.size() > kForward[1]; }
};

std::vector<void*> rest_of(Buffers buffers) {
  std::vector<void*> data;
  while (buffers.left() > 0) data.push_back(buffers.next()->data);
  return data;
}

XLA_FFI_Error* attention(XLA_FFI_CallFrame* frame) {
  if (is_metadata_asked(frame)) return nullptr;
  const Attributes attributes(frame->attrs);
  auto call = std::make_unique<AttentionCall>();
  const auto joint = joint_of<FutureJoint>(frame, attributes);
  call->joint = joint;
  joint->left = 1;
  call->queue = attributes.text("name");
  call->plan = reinterpret_cast<const rueda_attention_plan*>(attributes.number<int64_t>("plan", 0));
  call->process_set = attributes.number<int32_t>("process_set", 0);
  call->threads = attributes.number<int32_t>("threads", 0);
  call->is_local = attributes.number<int32_t>("is_local", 0) != 0;
  call->is_backward = attributes.number<int32_t>("is_backward", 0) != 0;
  call->inputs = rest_of(Buffers(frame->args.size, frame->args.args));
  call->outputs = rest_of(Buffers(frame->rets.size, frame->rets.rets));
  const size_t(&counts)[2] = call->is_backward ? kBackward : kForward;
  if (call->plan == nullptr || call->inputs.size() < counts[0] || call->outputs.size() < counts[1])
    return make_error(frame->api, RUEDA_UNIMPLEMENTED,
                      "rueda: this call of attention is not what this librueda_xla.so expects");
  if (XLA_FFI_Error* error = make_future(frame, joint.get())) return error;
  calls::Calls::instance().submit(std::move(call));
  return nullptr;
}

}  // namespace
}  // namespace rueda::xla

extern "C" {

RUEDA_API XLA_FFI_Error* rueda_xla_attention(XLA_FFI_CallFrame* frame) {
  return rueda::xla::attention(frame);
}
}
