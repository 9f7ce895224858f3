// Decoding on tensors of a GPU: memory and work are called back, messages are its streams'.
#include <string>
#include <vector>

#include "attention/decode_work.h"

namespace rueda::attention {
namespace {

class DeviceDecode final : public DecodeWork {
 public:
  DeviceDecode(const DeviceKernels& kernels, Link* link) : kernels_(kernels) {
    link->on_device(kernels.device, kernels.stream);
  }
  Result<std::byte*> take(DecodeSlot slot, int64_t bytes) override {
    void* const memory = kernels_.take(kernels_.user, 0, static_cast<int32_t>(slot), bytes);
    if (memory == nullptr)
      return Status(Code::kResourceExhausted,
                    with_reason("decode attention: no memory for " + std::to_string(bytes) +
                                    " bytes of a call",
                                kernels_));
    taken_.push_back(slot);
    return static_cast<std::byte*>(memory);
  }
  Status perform(DecodeStep step) override {
    if (kernels_.perform(kernels_.user, 0, static_cast<int32_t>(step)) == 0) return {};
    return internal_error(with_reason("decode attention: the kernel of step " +
                                          std::to_string(static_cast<int>(step)) + " failed",
                                      kernels_));
  }
  // What the stream is given from here on may use the memory.
  void give_all() {
    for (const DecodeSlot slot : taken_)
      kernels_.give(kernels_.user, 0, static_cast<int32_t>(slot));
  }

 private:
  const DeviceKernels& kernels_;
  std::vector<DecodeSlot> taken_;
};

}  // namespace

Status decode(const DecodeSpec& spec, Link* link, const DeviceKernels& kernels) {
  DeviceDecode work(kernels, link);
  RUEDA_RETURN_IF_ERROR(decode(spec, link, &work));
  work.give_all();
  return {};
}

}  // namespace rueda::attention
