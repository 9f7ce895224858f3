#include "launcher/tools/bench/measure.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "launcher/tools/bench/gradient_sets.h"

namespace rueda::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// The case's tensors in memory of the subject's; freed at the end.
class Buffers {
 public:
  Buffers(Subject* subject, const Case& c) : subject_(subject), c_(c) {}
  ~Buffers() {
    for (const auto& [memory, bytes] : blocks_) subject_->release(memory, bytes, c_.arena);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  Status make(int size) {
    if (c_.operation != Operation::kGradients) return add(extent_of(c_, size));
    RUEDA_ASSIGN_OR_RETURN(const std::vector<uint64_t> counts, gradient_counts(c_.set));
    for (const uint64_t count : counts) RUEDA_RETURN_IF_ERROR(add({count, count, true}));
    return {};
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  Status add(const Extent& extent) {
    Tensor tensor{nullptr, nullptr, extent.input, extent.output};
    RUEDA_ASSIGN_OR_RETURN(tensor.input, block(extent.input));
    if (extent.in_place) {
      tensor.output = tensor.input;
    } else {
      RUEDA_ASSIGN_OR_RETURN(tensor.output, block(extent.output));
    }
    tensors_.push_back(tensor);
    return {};
  }
  Result<void*> block(uint64_t count) {
    const size_t bytes = count * size_of(c_.dtype);
    RUEDA_ASSIGN_OR_RETURN(void* memory, subject_->allocate(bytes, c_.arena));
    blocks_.emplace_back(memory, bytes);
    return memory;
  }

  Subject* subject_;
  Case c_;
  std::vector<Tensor> tensors_;
  std::vector<std::pair<void*, size_t>> blocks_;
};

// The machine's own speed: every rank reads and writes `bytes` bytes of two arrays of its own once.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
void add_halves(float* __restrict a, float* __restrict b, size_t count) {
  for (size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
}

struct Plan {
  int warm_ups, iterations;
};

Plan plan_of(const Case& c, const Effort& effort) {
  const int wanted = c.bytes <= (64 << 10) ? 1000 : c.bytes <= (4 << 20) ? 40 : 7;
  const int iterations = effort.iterations > 0 ? effort.iterations : wanted;
  // The last case's plan is given up after 32 rounds, meanwhile protocols are settled, then a plan
  // is frozen; all libraries get as many.
  const int warm_ups = 60;
  return {effort.iterations > 0 ? std::min(warm_ups, 4 + effort.iterations) : warm_ups,
          std::min(iterations, kMaxSamples)};
}

Status run_once(Subject* subject, const Case& c, const Tensor& tensor) {
  if (c.operation != Operation::kLimit) return subject->run();
  auto* a = static_cast<float*>(tensor.input);
  add_halves(a, a + tensor.input_count / 2, tensor.input_count / 2);
  return {};
}

// No result has such an element: what is not written shows.
void spoil_output(const Case& c, const Tensor& tensor) {
  if (tensor.output == tensor.input) return;
  std::memset(tensor.output, 0xff, tensor.output_count * size_of(c.dtype));
}

uint64_t count_wrong_in_all(const Case& c, const std::vector<Tensor>& tensors,
                            const Meeting& meeting) {
  uint64_t wrong = 0;
  for (const Tensor& tensor : tensors)
    wrong += count_wrong(c, tensor.output, tensor.output_count, meeting.rank(), meeting.size());
  return wrong;
}

// What every rank says, in rank 0's order of words: fails on all if it fails on one.
bool any_rank(Meeting* meeting, bool mine) {
  meeting->put_sample(0, mine ? 1 : 0);
  meeting->barrier();
  const bool any = meeting->slowest(0) > 0;
  meeting->barrier();
  return any;
}

Status take_samples(Subject* subject, Meeting* meeting, const Case& c,
                    const std::vector<Tensor>& tensors, const Effort& effort, Row* row) {
  const Plan plan = plan_of(c, effort);
  const int fewest = std::min(plan.iterations, 5);
  auto begin = Clock::now();
  int done = -plan.warm_ups;
  for (;; ++done) {
    // A library that needs seconds for an operation gets fewer of them, and fewer warm-ups.
    const bool late = microseconds_since(begin) > effort.seconds * 1e6;
    if (meeting->agree(done >= plan.iterations || (done >= fewest && late))) break;
    if (meeting->agree(done < -1 && late)) done = -1;
    if (done == 0) begin = Clock::now();
    for (const Tensor& tensor : tensors)
      make_dirty(c.dtype, tensor.input, tensor.input_count, meeting->rank());
    meeting->barrier();
    const auto start = Clock::now();
    RUEDA_RETURN_IF_ERROR(run_once(subject, c, tensors.front()));
    if (done >= 0) meeting->put_sample(done, microseconds_since(start));
  }
  meeting->barrier();
  std::vector<double> times;
  for (int i = 0; i < done; ++i) times.push_back(meeting->slowest(i));
  std::sort(times.begin(), times.end());
  row->iterations = done;
  row->microseconds = times[times.size() / 2];
  row->p99_microseconds = times[std::min(times.size() - 1, times.size() * 99 / 100)];
  meeting->barrier();
  return {};
}

Status check_result(Subject* subject, Meeting* meeting, const Case& c,
                    const std::vector<Tensor>& tensors, Row* row) {
  for (const Tensor& tensor : tensors) {
    fill_for_check(c.dtype, tensor.input, tensor.input_count, meeting->rank());
    spoil_output(c, tensor);
  }
  meeting->barrier();
  RUEDA_RETURN_IF_ERROR(run_once(subject, c, tensors.front()));
  const uint64_t wrong = count_wrong_in_all(c, tensors, *meeting);
  meeting->put_sample(0, static_cast<double>(wrong));
  meeting->barrier();
  row->wrong = static_cast<uint64_t>(meeting->slowest(0));
  meeting->barrier();
  return {};
}

}  // namespace

Result<void*> Subject::allocate(size_t bytes, bool arena) {
  if (arena) return Status{Code::kUnimplemented, "no memory in which it works in place"};
  // As a framework's large tensors: pages of their own, huge ones where the system gives them.
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED)
    return unavailable("no memory for a buffer of " + std::to_string(bytes) + " bytes");
  return memory;
}

void Subject::release(void* memory, size_t bytes, bool) { munmap(memory, bytes); }

std::string state_of(double ns_before, double ns_after) {
  if (ns_before <= 0 || ns_after <= 0) return "none";
  if (ns_before < 90 && ns_after < 90) return "NEAR";
  return ns_before > 180 && ns_after > 180 ? "FAR" : "mixed";
}

Result<Row> measure(Subject* subject, Meeting* meeting, const Case& c, const Effort& effort) {
  Row row;
  row.c = c;
  const bool limit = c.operation == Operation::kLimit;
  if (limit && (c.dtype != DataType::kF32 || c.arena))
    return invalid_argument("the limit is measured with f32 in private memory only");
  Buffers buffers(subject, c);
  Status ready = buffers.make(meeting->size());
  // One collective decision: a rank that cannot must not leave the others in the operation.
  if (any_rank(meeting, !ready.ok())) {
    row.unavailable = ready.ok() ? "not on every rank" : ready.message();
    return row;
  }
  if (!limit) ready = subject->begin(c, buffers.tensors());
  if (any_rank(meeting, !ready.ok())) {
    row.unavailable = ready.ok() ? "not on every rank" : ready.message();
    if (!limit) subject->end();
    return row;
  }
  row.manner = limit ? "call" : subject->manner();
  Status status;
  row.ns_before = meeting->one_way_ns();
  status = take_samples(subject, meeting, c, buffers.tensors(), effort, &row);
  if (status.ok()) row.ns_after = meeting->one_way_ns();
  if (status.ok()) status = check_result(subject, meeting, c, buffers.tensors(), &row);
  if (!limit) subject->end();
  if (!status.ok()) return status.with_message(text_of(c) + ": " + status.message());
  return row;
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    char escaped[8];
    if (letter == '"' || letter == '\\') {
      out += '\\', out += letter;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(letter));
      out += escaped;
    } else {
      out += letter;
    }
  }
  return out + "\"";
}

std::string json_of(const Row& row) {
  std::string out = "{\"case\": " + json_string(text_of(row.c)) + ", \"op\": \"" +
                    name_of(row.c.operation) + "\", \"dtype\": \"" + name_of(row.c.dtype) +
                    "\", \"memory\": \"" + (row.c.arena ? "arena" : "private") +
                    "\", \"bytes\": " + std::to_string(row.c.bytes);
  if (!row.unavailable.empty())
    return out + ", \"unavailable\": " + json_string(row.unavailable) + "}";
  char figures[320];
  std::snprintf(figures, sizeof(figures),
                ", \"manner\": \"%s\", \"us\": %.3f, \"p99_us\": %.3f, \"iterations\": %d, "
                "\"wrong\": %llu, \"ns\": [%.1f, %.1f], \"state\": \"%s\"}",
                row.manner.c_str(), row.microseconds, row.p99_microseconds, row.iterations,
                static_cast<unsigned long long>(row.wrong), row.ns_before, row.ns_after,
                state_of(row.ns_before, row.ns_after).c_str());
  return out + figures;
}

}  // namespace rueda::bench
