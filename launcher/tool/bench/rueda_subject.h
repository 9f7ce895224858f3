// rueda itself, through its C ABI. Its requests are persistent, unless the caller wants every
// operation made anew.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/tool/bench/librueda.h"
#include "launcher/tool/bench/measure.h"

namespace rueda::bench {

class RuedaSubject final : public Subject {
 public:
  // `context` is borrowed and outlives this.
  RuedaSubject(const LibRueda& api, rueda_context* context, bool prepare)
      : api_(api), context_(context), prepare_(prepare) {}
  ~RuedaSubject() override { RuedaSubject::end(); }

  Result<void*> allocate(size_t bytes, bool arena) override;
  void release(void* memory, size_t bytes, bool arena) override;
  bool owns_output(Operation operation) const override;
  Status begin(const Case& c, const std::vector<Tensor>& tensors) override;
  Status run() override;
  const void* result(size_t tensor) const override;
  void end() override;
  std::string manner() const override { return persistent_ ? "persistent" : "call"; }

 private:
  Status run_persistent();
  Status run_once();
  Status wait_for_all();

  LibRueda api_;
  rueda_context* context_;
  bool prepare_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> names_;
  std::vector<int64_t> shapes_;
  std::vector<rueda_op> ops_;  // last tensor first, as backward hands them over
  // Of each of them; without persistent ones those of the last run, where the output is the
  // library's.
  std::vector<rueda_request*> requests_;
  bool persistent_ = false;
  bool owned_ = false;
  uint64_t cases_ = 0;
};

}  // namespace rueda::bench
