// rueda itself, through its C ABI. Operations of all kinds are persistent requests, unless the
// caller wants each made anew; sizes are fixed, and results go into the caller's memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/tools/bench/librueda.h"
#include "launcher/tools/bench/measure.h"

namespace rueda::bench {

class RuedaSubject final : public Subject {
 public:
  // `context` is borrowed and outlives this.
  RuedaSubject(const LibRueda& api, rueda_context* context, bool prepare)
      : api_(api), context_(context), prepare_(prepare) {}
  ~RuedaSubject() override { RuedaSubject::end(); }

  Result<void*> allocate(size_t bytes, bool arena) override;
  void release(void* memory, size_t bytes, bool arena) override;
  Status begin(const Case& c, const std::vector<Tensor>& tensors) override;
  Status run() override;
  void end() override;
  std::string manner() const override { return prepare_ ? "persistent" : "call"; }

 private:
  Status run_persistent();
  Status run_anew();
  Status wait_for_all();
  void release_all();

  LibRueda api_;
  rueda_context* context_;
  bool prepare_;
  std::vector<std::string> names_;
  std::vector<int64_t> shapes_;
  std::vector<rueda_op> ops_;             // last tensor first, as backward hands them over
  std::vector<rueda_request*> requests_;  // of each of them; null where none is under way
  uint64_t cases_ = 0;
};

}  // namespace rueda::bench
