// One case measured for one library, the same way for every library:
//   - the owner overwrites its whole buffer before every operation, outside the timer: a loop over
//     untouched buffers would leave each slice in one core's cache;
//   - time of an operation: from a barrier to the slowest rank's end; of a case: the median;
//   - results go into the caller's memory, the same at each operation;
//   - the result is compared element by element in a pass of its own;
//   - how far the cores are apart is measured before and after.
#pragma once

#include <string>
#include <vector>

#include "launcher/tools/bench/cases.h"
#include "launcher/tools/bench/meeting.h"

namespace rueda::bench {

// A tensor of the case. output is input where the operation works in place.
struct Tensor {
  void* input = nullptr;
  void* output = nullptr;
  uint64_t input_count = 0, output_count = 0;
};

// A library under test. All ranks make the same calls; one thread.
class Subject {
 public:
  virtual ~Subject() = default;
  // 64-byte aligned memory, freed with release. Unimplemented where there is no shared arena.
  virtual Result<void*> allocate(size_t bytes, bool arena);
  virtual void release(void* memory, size_t bytes, bool arena);
  // Before the first run. Unimplemented: the row says "not available" and why.
  virtual Status begin(const Case& c, const std::vector<Tensor>& tensors) = 0;
  // What is timed. Results are in the tensors' outputs when it returns.
  virtual Status run() = 0;
  virtual void end() = 0;
  // How the operation was called: "persistent", checked and named once, or "call".
  virtual std::string manner() const { return "call"; }
};

struct Effort {
  double seconds = 1.0;  // of measuring, per case; at least five operations
  int iterations = 0;    // 0: 1000 up to 64 KiB, 40 up to 4 MiB, 7 above
};

struct Row {
  Case c;
  std::string manner, unavailable;  // unavailable: why there are no figures
  double microseconds = 0, p99_microseconds = 0;
  int iterations = 0;
  uint64_t wrong = 0;  // elements of all ranks that differed
  double ns_before = 0, ns_after = 0;
};

// "NEAR" below 90 ns one way before and after, "FAR" above 180, else "mixed"; "none" with one rank.
std::string state_of(double ns_before, double ns_after);

// An error is one that ends the benchmark; what a subject cannot do is a row that says so.
Result<Row> measure(Subject* subject, Meeting* meeting, const Case& c, const Effort& effort);

// One object, without a line break.
std::string json_of(const Row& row);
std::string json_string(const std::string& text);

}  // namespace rueda::bench
