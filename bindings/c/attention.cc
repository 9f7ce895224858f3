#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "attention/decode_shares.h"
#include "attention/device_steps.h"
#include "attention/program.h"
#include "attention/saved.h"
#include "bindings/c/context.h"
#include "collectives/base/config.h"
#include "collectives/nccl/machine.h"

using rueda::Result;
using rueda::Status;
namespace attention = rueda::attention;

struct rueda_attention_plan {
  std::shared_ptr<const attention::AttentionPlan> plan;
};
struct rueda_attention_saved {
  std::shared_ptr<attention::Saved> saved;
};

namespace {

// The first versions of what callers fill in.
constexpr size_t kFirstSpecBytes = sizeof(rueda_attention_spec);
constexpr size_t kFirstDecodeBytes = sizeof(rueda_attention_decode_spec);
constexpr size_t kFirstKernelBytes = sizeof(rueda_attention_kernel);
constexpr size_t kFirstDeviceBytes = offsetof(rueda_attention_device, reason);

std::vector<int64_t> list(const int64_t* values, int64_t count) {
  if (values == nullptr || count <= 0) return {};
  return {values, values + count};
}

template <typename Pointer>
Status require(Pointer pointer, const char* what) {
  if (pointer != nullptr) return {};
  return rueda::invalid_argument(std::string("attention: ") + what + " is NULL");
}

Result<std::vector<float>> slopes(const float* values, int64_t count) {
  if (count <= 0) return std::vector<float>();
  RUEDA_RETURN_IF_ERROR(require(values, "alibi_slopes"));
  return std::vector<float>(values, values + count);
}

Result<attention::AttentionSpec> convert(const rueda_attention_spec* spec) {
  if (spec == nullptr) return rueda::invalid_argument("no attention spec (NULL)");
  rueda_attention_spec c = RUEDA_ATTENTION_SPEC_INIT;
  RUEDA_RETURN_IF_ERROR(
      rueda::c_abi::read_struct(spec, kFirstSpecBytes, "rueda_attention_spec", &c));
  // What is half given would be another attention without a word.
  if (c.cu_seqlens_count > 0) RUEDA_RETURN_IF_ERROR(require(c.cu_seqlens, "cu_seqlens"));
  if (c.pair_count > 0) {
    RUEDA_RETURN_IF_ERROR(require(c.segment_lengths, "segment_lengths"));
    RUEDA_RETURN_IF_ERROR(require(c.dilation_rates, "dilation_rates"));
  }
  attention::AttentionSpec result;
  result.batch = c.batch;
  result.length = c.length;
  result.heads = c.heads;
  result.kv_heads = c.kv_heads;
  result.head_dim = c.head_dim;
  for (const int32_t dtype : {c.dtype, c.kv_wire}) {
    if (dtype < 0 || dtype > 255 || !rueda::is_valid(static_cast<rueda::DType>(dtype)))
      return rueda::invalid_argument("attention: dtype " + std::to_string(dtype) + " is unknown");
  }
  result.dtype = static_cast<rueda::DType>(c.dtype);
  result.kv_wire = static_cast<rueda::DType>(c.kv_wire);
  if (c.layout < 0 || c.layout > 2 || c.rotate_forward < 0 || c.rotate_forward > 2 ||
      c.rotate_backward < 0 || c.rotate_backward > 2 || c.head_offset < 0 || c.head_offset > 1) {
    return rueda::invalid_argument("attention: layout, rotate or head_offset is unknown");
  }
  result.layout = static_cast<attention::Layout>(c.layout);
  result.ulysses = c.ulysses;
  result.rotate_forward = static_cast<attention::Rotate>(c.rotate_forward);
  result.rotate_backward = static_cast<attention::Rotate>(c.rotate_backward);
  result.gather_first = c.gather_first != 0;
  result.chunk_tokens = c.chunk_tokens;
  result.scale = c.scale;
  result.softcap = c.softcap;
  RUEDA_ASSIGN_OR_RETURN(result.alibi_slopes, slopes(c.alibi_slopes, c.alibi_count));
  result.mask.causal = c.causal != 0;
  result.mask.left = c.left;
  result.mask.right = c.right;
  result.mask.cu_seqlens = list(c.cu_seqlens, c.cu_seqlens_count);
  result.mask.segment_lengths = list(c.segment_lengths, c.pair_count);
  result.mask.dilation_rates = list(c.dilation_rates, c.pair_count);
  result.mask.head_offset = static_cast<attention::HeadOffset>(c.head_offset);
  result.mask.split_heads = c.split_heads != 0;
  result.mask.block = c.block;
  if (c.block != 0) result.mask.block_heads = c.block_heads;
  if (c.block > 0 && c.length > 0 && c.length <= (int64_t{1} << 30)) {
    RUEDA_RETURN_IF_ERROR(require(c.blocks, "blocks"));
    const int64_t rows = attention::ceil_div(c.length, c.block);
    if (c.block_heads == 1 || c.block_heads == c.kv_heads)  // else refused by check()
      result.mask.blocks.assign(c.blocks, c.blocks + c.block_heads * rows * rows);
  }
  result.layout_per_sequence = c.layout_per_sequence != 0;
  result.key_length = c.key_length;
  result.mask.cu_seqlens_k = list(c.cu_seqlens_k, c.cu_seqlens_count);
  return result;
}

Result<attention::DecodeSpec> convert(const rueda_attention_decode_spec* spec) {
  if (spec == nullptr) return rueda::invalid_argument("no decode spec (NULL)");
  rueda_attention_decode_spec c = RUEDA_ATTENTION_DECODE_SPEC_INIT;
  RUEDA_RETURN_IF_ERROR(
      rueda::c_abi::read_struct(spec, kFirstDecodeBytes, "rueda_attention_decode_spec", &c));
  if (c.dtype < 0 || c.dtype > 255 || !rueda::is_valid(static_cast<rueda::DType>(c.dtype)))
    return rueda::invalid_argument("attention: dtype " + std::to_string(c.dtype) + " is unknown");
  if (c.batch > 0) RUEDA_RETURN_IF_ERROR(require(c.lengths, "lengths"));
  attention::DecodeSpec result;
  result.batch = c.batch;
  result.queries = c.queries;
  result.heads = c.heads;
  result.kv_heads = c.kv_heads;
  result.head_dim = c.head_dim;
  result.dtype = static_cast<rueda::DType>(c.dtype);
  result.own = c.own != 0;
  result.causal = c.causal != 0;
  result.left = c.left;
  result.global_tokens = c.global_tokens;
  result.scale = c.scale;
  result.softcap = c.softcap;
  RUEDA_ASSIGN_OR_RETURN(result.alibi_slopes, slopes(c.alibi_slopes, c.alibi_count));
  result.lengths = list(c.lengths, c.batch);
  if (c.sinks != nullptr && c.heads > 0) result.sinks.assign(c.sinks, c.sinks + c.heads);
  result.sequences = c.sequences;
  result.blocks = c.blocks;
  result.block_tokens = c.block_tokens;
  result.table_blocks = c.table_blocks;
  if (c.block_table != nullptr && c.batch > 0 && c.table_blocks > 0)
    result.block_table.assign(c.block_table, c.block_table + c.batch * c.table_blocks);
  return result;
}

Result<attention::DeviceKernels> convert(const rueda_attention_device* device) {
  RUEDA_RETURN_IF_ERROR(require(device, "the device"));
  rueda_attention_device c{};
  RUEDA_RETURN_IF_ERROR(
      rueda::c_abi::read_struct(device, kFirstDeviceBytes, "rueda_attention_device", &c));
  if (c.take == nullptr || c.give == nullptr || c.perform == nullptr)
    return rueda::invalid_argument("attention: take, give and perform must be functions");
  return attention::DeviceKernels{c.device, static_cast<rueda::cuda::StreamHandle>(c.stream),
                                  c.user,   c.take,
                                  c.give,   c.perform,
                                  c.reason, c.reason_bytes};
}

// Without a job: of rank 0 of 1. It lives as long as the process, by the settings of when it was
// asked for first.
Result<attention::Engine*> local_engine() {
  static std::mutex mutex;
  static attention::Engine* engine = nullptr;
  const std::lock_guard lock(mutex);
  if (engine == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(const rueda::Config config, rueda::load_config(::getenv));
    RUEDA_RETURN_IF_ERROR(rueda::c_abi::kernels().use_setting(config.attention_kernel));
    engine = new attention::Engine(nullptr, &rueda::c_abi::kernels(), config.check_programs);
  }
  return engine;
}

// A GPU without a job, likewise.
Result<rueda::cuda::DevicePtr> local_device(int ordinal) {
  static std::mutex mutex;
  static rueda::nccl::Machine* machine = nullptr;
  const std::lock_guard lock(mutex);
  if (machine == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(rueda::Config config, rueda::load_config(::getenv));
    rueda::nccl::Machine::Options options;
    options.driver = std::move(config.cuda_driver);
    machine = new rueda::nccl::Machine(std::move(options));
  }
  return machine->device(ordinal);
}

// What a call works with; the member is kept for as long as it is used.
struct Site {
  rueda::c_abi::MemberPtr member;
  attention::Engine* engine;
};

Result<Site> site_of(rueda_context* context) {
  if (context == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(attention::Engine* const engine, local_engine());
    return Site{nullptr, engine};
  }
  RUEDA_ASSIGN_OR_RETURN(auto member, rueda::c_abi::use(context));
  attention::Engine* const engine = member->attention();
  return Site{std::move(member), engine};
}

// Starts a call; its handle is made first, since after the start nothing may fail.
template <typename Start>
Status start_call(rueda_context* context, rueda_request** request, Start start) {
  RUEDA_ASSIGN_OR_RETURN(const Site site, site_of(context));
  auto handle = rueda::c_abi::make_handle();
  RUEDA_ASSIGN_OR_RETURN(handle->completion, start(site.engine));
  *request = handle.release();
  return {};
}

// The C structs are the library's own, field by field.
using attention::KernelTile;
using attention::QueryHead;
static_assert(sizeof(rueda_attention_rows) == sizeof(attention::RowsIn));
static_assert(sizeof(rueda_attention_head) == sizeof(QueryHead) &&
              offsetof(rueda_attention_head, l) == offsetof(QueryHead, l) &&
              offsetof(rueda_attention_head, dout) == offsetof(QueryHead, dout) &&
              offsetof(rueda_attention_head, lse_low) == offsetof(QueryHead, lse_low) &&
              offsetof(rueda_attention_head, dq) == offsetof(QueryHead, dq));
static_assert(sizeof(rueda_attention_tile) == sizeof(KernelTile) &&
              offsetof(rueda_attention_tile, high) == offsetof(KernelTile, high) &&
              offsetof(rueda_attention_tile, scale) == offsetof(KernelTile, scale) &&
              offsetof(rueda_attention_tile, heads) == offsetof(KernelTile, heads) &&
              offsetof(rueda_attention_tile, k) == offsetof(KernelTile, k) &&
              offsetof(rueda_attention_tile, dkv_stride) == offsetof(KernelTile, dkv_stride) &&
              offsetof(rueda_attention_tile, slopes) == offsetof(KernelTile, slopes));

using KernelFunction = void (*)(const KernelTile&, float*);
// A reference is passed as a pointer is.
KernelFunction own(void (*function)(const rueda_attention_tile*, float*)) {
  return reinterpret_cast<KernelFunction>(reinterpret_cast<void (*)()>(function));
}

// Its name and itself, for as long as the process lives.
struct AddedKernel {
  std::string name;
  attention::LocalKernel kernel;
};

// A rank without tokens has no memory to point to.
Status check_tensors(const attention::AttentionPlan& plan,
                     std::initializer_list<const void*> queries,
                     std::initializer_list<const void*> keys) {
  const auto given = [](const std::initializer_list<const void*>& tensors) {
    return std::find(tensors.begin(), tensors.end(), nullptr) == tensors.end();
  };
  if ((plan.own_tokens() == 0 || given(queries)) && (plan.own_keys() == 0 || given(keys)))
    return {};
  return rueda::invalid_argument("attention: a tensor of this rank, which has " +
                                 std::to_string(plan.own_tokens()) + " tokens and " +
                                 std::to_string(plan.own_keys()) + " keys, is NULL");
}

const std::byte* in(const void* memory) { return static_cast<const std::byte*>(memory); }
std::byte* out(void* memory) { return static_cast<std::byte*>(memory); }

}  // namespace

extern "C" {

int32_t rueda_attention_plan_create(rueda_context* context, const rueda_attention_spec* spec,
                                    int32_t process_set, int32_t rank, int32_t ranks,
                                    rueda_attention_plan** plan, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(require(plan, "where the plan goes"));
    RUEDA_ASSIGN_OR_RETURN(attention::AttentionSpec converted, convert(spec));
    auto handle = std::make_unique<rueda_attention_plan>();
    if (context == nullptr) {
      converted.ranks = ranks;
      RUEDA_ASSIGN_OR_RETURN(auto made, attention::make_plan(converted, rank));
      handle->plan = std::make_shared<const attention::AttentionPlan>(std::move(made));
    } else {
      RUEDA_ASSIGN_OR_RETURN(const Site site, site_of(context));
      RUEDA_ASSIGN_OR_RETURN(
          auto made, site.engine->plan(std::move(converted), static_cast<uint32_t>(process_set)));
      handle->plan = std::make_shared<const attention::AttentionPlan>(std::move(made));
    }
    *plan = handle.release();
    return {};
  });
}

void rueda_attention_plan_release(rueda_attention_plan* plan) { delete plan; }

int32_t rueda_attention_plan_report(const rueda_attention_plan* plan, int64_t* values,
                                    int32_t count) {
  if (plan == nullptr) return -1;
  const attention::PlanReport& r = plan->plan->report;
  const int64_t all[] = {static_cast<int64_t>(r.hash),
                         plan->plan->own_tokens(),
                         r.steps,
                         r.tiles,
                         r.messages_sent_forward,
                         r.messages_sent_backward,
                         r.bytes_sent_forward,
                         r.bytes_sent_backward,
                         r.bytes_received_forward,
                         r.bytes_received_backward,
                         r.flops_forward,
                         r.flops_backward,
                         r.saved_bytes,
                         r.workspace_forward,
                         r.workspace_backward,
                         plan->plan->own_keys(),
                         plan->plan->heads.q_begin,
                         plan->plan->heads.q_end,
                         plan->plan->heads.kv_begin,
                         plan->plan->heads.kv_end,
                         plan->plan->band.low,
                         plan->plan->band.high,
                         plan->plan->forward.keys,
                         plan->plan->backward.keys,
                         plan->plan->group_tokens(),
                         plan->plan->group_keys(),
                         plan->plan->forward.rotate == attention::Rotate::kQueries ? 1 : 0,
                         plan->plan->backward.rotate == attention::Rotate::kQueries ? 1 : 0};
  constexpr int32_t kCount = sizeof all / sizeof all[0];
  for (int32_t i = 0; i < count && i < kCount; ++i) values[i] = all[i];
  return kCount;
}

int64_t rueda_attention_plan_tiles(const rueda_attention_plan* plan, int32_t backward,
                                   int64_t* values, int64_t count) {
  if (plan == nullptr) return -1;
  const attention::AttentionPlan& p = *plan->plan;
  const attention::RingPlan& ring = backward != 0 ? p.backward : p.forward;
  int64_t filled = 0;
  const auto put = [&](int64_t step, rueda::Rank peer, const attention::Tile& t) {
    const int64_t numbers[RUEDA_ATTENTION_TILE_NUMBERS] = {
        step,     peer,      t.head_begin, t.head_end, t.head_step, t.q_pos,
        t.q_step, t.q.count, t.k_pos,      t.k_step,   t.k.count,   t.pairs};
    for (const int64_t number : numbers) {
      if (values != nullptr && filled < count) values[filled] = number;
      ++filled;
    }
  };
  for (const attention::Tile& tile : ring.local) put(0, p.rank, tile);
  for (const attention::Hop& hop : ring.receives) {
    for (const attention::Tile& tile : hop.tiles) put(hop.step, hop.peer, tile);
  }
  return filled;
}

int64_t rueda_attention_plan_work(const rueda_attention_plan* plan, int32_t backward,
                                  int64_t* values, int64_t count) {
  if (plan == nullptr) return -1;
  return rueda::c_abi::guarded_value(int64_t{-1}, [&] {
    int64_t filled = 0;
    const auto put = [&](const int64_t(&numbers)[RUEDA_ATTENTION_WORK_NUMBERS]) {
      for (const int64_t number : numbers) {
        if (values != nullptr && filled < count) values[filled] = number;
        ++filled;
      }
    };
    const attention::Program& program = attention::program_of(*plan->plan, backward != 0, true);
    for (const attention::Buffer& b : program.buffers)
      put({0, static_cast<int64_t>(b.role), static_cast<int64_t>(b.home), b.slot, b.bytes});
    const auto parts = [&](int64_t which, const std::vector<attention::MessagePart>& all) {
      for (const attention::MessagePart& part : all) {
        put({2, which, static_cast<int64_t>(part.role), part.set, part.head, part.heads,
             attention::total(part.rows), part.offset, part.bytes, part.scales, part.add ? 1 : 0});
        for (const attention::Run& run : part.rows) put({3, run.begin, run.step, run.count});
      }
    };
    for (const attention::Instruction& one : program.list) {
      put({1, static_cast<int64_t>(one.op), static_cast<int64_t>(one.stage), one.message, one.reply,
           one.last ? 1 : 0, one.hop >= 0 ? 1 : 0});
      const attention::DeviceStep step = attention::device_step(*plan->plan, program, one);
      parts(0, step.message);
      parts(1, step.reply);
      for (size_t i = 0; i < step.pieces.size(); ++i) {
        const attention::DevicePiece& p = step.pieces[i];
        put({4, static_cast<int64_t>(p.kind), p.head_begin, p.head_end, p.head_step, p.q.begin,
             p.q.step, p.q.count, p.k.begin, p.k.step, p.k.count, p.q_pos, p.q_step, p.k_pos,
             p.k_step, step.sets[i]});
      }
    }
    return filled;
  });
}

int64_t rueda_attention_plan_program(const rueda_attention_plan* plan, int32_t backward, char* text,
                                     int64_t size) {
  if (plan == nullptr) return -1;
  return rueda::c_abi::guarded_value(int64_t{-1}, [&] {
    const std::string whole = attention::as_text(attention::program_of(*plan->plan, backward != 0));
    if (text != nullptr && size > 0)
      std::snprintf(text, static_cast<size_t>(size), "%s", whole.c_str());
    return static_cast<int64_t>(std::ssize(whole));
  });
}

double rueda_attention_plan_balance(const rueda_attention_plan* plan) {
  if (plan == nullptr) return -1;
  return attention::balance(plan->plan->spec);
}

int64_t rueda_attention_tokens(int32_t layout, int64_t length, int32_t rank, int32_t ranks,
                               int64_t* positions, int64_t max_count) {
  if (layout < 0 || layout > 2 || length < 0 || ranks < 1 || rank < 0 || rank >= ranks) return -1;
  int64_t count = 0;
  for (const auto& run :
       attention::tokens_of(static_cast<attention::Layout>(layout), length, rank, ranks)) {
    for (int64_t i = 0; i < run.count; ++i, ++count) {
      if (positions != nullptr && count < max_count) positions[count] = run.at(i);
    }
  }
  return count;
}

int32_t rueda_attention_forward(rueda_context* context, const rueda_attention_plan* plan,
                                int32_t process_set, int32_t threads, const void* q, const void* k,
                                const void* v, void* result, float* lse,
                                rueda_attention_saved** saved, rueda_request** request,
                                rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(require(plan, "the plan"));
    RUEDA_RETURN_IF_ERROR(require(request, "where the request goes"));
    RUEDA_RETURN_IF_ERROR(check_tensors(*plan->plan, {q, result}, {k, v}));
    auto kept = std::make_unique<rueda_attention_saved>();
    kept->saved = std::make_shared<attention::Saved>();
    RUEDA_RETURN_IF_ERROR(start_call(context, request, [&](attention::Engine* engine) {
      return engine->forward(plan->plan, static_cast<uint32_t>(process_set), threads,
                             {in(q), in(k), in(v), out(result), lse}, kept->saved,
                             plan->plan->spec.ranks == 1);
    }));
    if (saved != nullptr) *saved = kept.release();
    return {};
  });
}

int32_t rueda_attention_backward(rueda_context* context, const rueda_attention_plan* plan,
                                 int32_t process_set, int32_t threads, const void* dout,
                                 const float* dlse, const void* q, const void* k, const void* v,
                                 const void* result, const float* lse,
                                 const rueda_attention_saved* saved, void* dq, void* dk, void* dv,
                                 rueda_request** request, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(require(plan, "the plan"));
    RUEDA_RETURN_IF_ERROR(require(request, "where the request goes"));
    RUEDA_RETURN_IF_ERROR(check_tensors(*plan->plan, {dout, q, result, lse, dq}, {k, v, dk, dv}));
    return start_call(context, request, [&](attention::Engine* engine) {
      return engine->backward(
          plan->plan, static_cast<uint32_t>(process_set), threads,
          {in(dout), dlse, in(q), in(k), in(v), in(result), lse, out(dq), out(dk), out(dv)},
          saved == nullptr ? nullptr : saved->saved, plan->plan->spec.ranks == 1);
    });
  });
}

int32_t rueda_attention_run(rueda_context* context, const rueda_attention_plan* const* plans,
                            int32_t count, int32_t process_set, int32_t backward,
                            const rueda_attention_device* device, int64_t* sent, int32_t* under_way,
                            rueda_error* error) {
  if (under_way != nullptr) *under_way = 0;
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(require(plans, "the list of plans"));
    RUEDA_ASSIGN_OR_RETURN(const attention::DeviceKernels kernels, convert(device));
    std::vector<const attention::AttentionPlan*> ranks;
    for (int32_t i = 0; i < count; ++i) {
      RUEDA_RETURN_IF_ERROR(require(plans[i], "a plan"));
      ranks.push_back(plans[i]->plan.get());
    }
    if (context != nullptr) {
      if (count != 1) return rueda::invalid_argument("attention: a rank of a job has one plan");
      RUEDA_ASSIGN_OR_RETURN(const Site site, site_of(context));
      bool uses = false;
      const Status status = site.engine->run(*ranks.front(), static_cast<uint32_t>(process_set),
                                             backward != 0, kernels, &uses);
      if (under_way != nullptr) *under_way = uses ? 1 : 0;
      return status;
    }
    for (int32_t i = 0; i < count; ++i) {
      const attention::AttentionPlan& plan = *ranks[static_cast<size_t>(i)];
      if (plan.rank == i && plan.spec.ranks == count &&
          plan.report.hash == ranks.front()->report.hash)
        continue;
      return rueda::invalid_argument(
          "attention: without a job there must be the plans of all ranks "
          "of one call, in their order");
    }
    RUEDA_ASSIGN_OR_RETURN(attention::Engine* const engine, local_engine());
    rueda::cuda::DevicePtr on;
    if (kernels.device >= 0) {
      RUEDA_ASSIGN_OR_RETURN(on, local_device(kernels.device));
    }
    std::vector<int64_t> bytes;
    const Status status = engine->run(ranks, backward != 0, std::move(on), kernels, &bytes);
    if (sent != nullptr) std::copy(bytes.begin(), bytes.end(), sent);
    return status;
  });
}

int32_t rueda_attention_decode(rueda_context* context, const rueda_attention_decode_spec* spec,
                               int32_t process_set, int32_t threads, const void* q, const void* k,
                               const void* v, void* result, float* lse, rueda_request** request,
                               rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(require(request, "where the request goes"));
    RUEDA_ASSIGN_OR_RETURN(attention::DecodeSpec converted, convert(spec));
    return start_call(context, request, [&](attention::Engine* engine) {
      return engine->decode(std::move(converted), static_cast<uint32_t>(process_set), threads,
                            {in(q), in(k), in(v), out(result), lse});
    });
  });
}

int32_t rueda_attention_decode_run(rueda_context* context, const rueda_attention_decode_spec* spec,
                                   int32_t process_set, const rueda_attention_device* device,
                                   int32_t* under_way, rueda_error* error) {
  if (under_way != nullptr) *under_way = 0;
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(attention::DecodeSpec converted, convert(spec));
    RUEDA_ASSIGN_OR_RETURN(const attention::DeviceKernels kernels, convert(device));
    RUEDA_ASSIGN_OR_RETURN(const Site site, site_of(context));
    bool uses = false;
    const Status status = site.engine->decode(std::move(converted),
                                              static_cast<uint32_t>(process_set), kernels, &uses);
    if (under_way != nullptr) *under_way = uses ? 1 : 0;
    return status;
  });
}

int64_t rueda_attention_decode_work(const rueda_attention_decode_spec* spec, int32_t rank,
                                    int32_t ranks, int64_t* values, int64_t count) {
  return rueda::c_abi::guarded_value(int64_t{-1}, [&]() -> int64_t {
    Result<attention::DecodeSpec> converted = convert(spec);
    if (!converted.ok() || rank < 0 || rank >= ranks) return -1;
    attention::DecodeSpec s = std::move(converted).value();
    s.rank = rank;
    s.ranks = ranks;
    if (!attention::check(s).ok()) return -1;
    int64_t filled = 0;
    const auto put = [&](int64_t number) {
      if (values != nullptr && filled < count) values[filled] = number;
      ++filled;
    };
    const attention::DecodeShares shares(s);
    for (rueda::Rank r = 0; r <= ranks; ++r) put(shares.begin(r));
    put(shares.result_stride());
    for (const attention::DecodeSpan& span : attention::spans_of(s)) {
      const int64_t numbers[RUEDA_ATTENTION_SPAN_NUMBERS] = {span.sequence, span.begin, span.end,
                                                             span.left, span.common};
      for (const int64_t number : numbers) put(number);
    }
    return filled;
  });
}

void rueda_attention_saved_release(rueda_attention_saved* saved) { delete saved; }

int64_t rueda_attention_saved_size(const rueda_attention_plan* plan) {
  return plan == nullptr ? -1 : attention::saved_bytes_of_entry(*plan->plan);
}

int32_t rueda_attention_saved_write(const rueda_attention_plan* plan,
                                    const rueda_attention_saved* saved, void* bytes,
                                    rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(require(plan, "the plan"));
    RUEDA_RETURN_IF_ERROR(require(saved, "what the forward has kept"));
    if (attention::saved_bytes_of_entry(*plan->plan) == 0) return {};
    RUEDA_RETURN_IF_ERROR(require(bytes, "where the bytes go"));
    attention::write_saved(*plan->plan, *saved->saved, out(bytes));
    return {};
  });
}

int32_t rueda_attention_saved_read(const rueda_attention_plan* plan, const void* bytes,
                                   rueda_attention_saved** saved, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(require(plan, "the plan"));
    RUEDA_RETURN_IF_ERROR(require(saved, "where it goes"));
    if (attention::saved_bytes_of_entry(*plan->plan) > 0)
      RUEDA_RETURN_IF_ERROR(require(bytes, "what was written"));
    auto kept = std::make_unique<rueda_attention_saved>();
    kept->saved = std::make_shared<attention::Saved>(attention::read_saved(*plan->plan, in(bytes)));
    *saved = kept.release();
    return {};
  });
}

int32_t rueda_attention_add_kernel(const rueda_attention_kernel* kernel, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (kernel == nullptr) return rueda::invalid_argument("no attention kernel (NULL)");
    rueda_attention_kernel given{};
    RUEDA_RETURN_IF_ERROR(
        rueda::c_abi::read_struct(kernel, kFirstKernelBytes, "rueda_attention_kernel", &given));
    if (given.name == nullptr || given.name[0] == 0 || given.forward == nullptr ||
        given.backward == nullptr) {
      return rueda::invalid_argument("attention: a kernel needs a name, forward and backward");
    }
    auto added = std::make_unique<AddedKernel>();
    added->name = given.name;
    added->kernel = {
        added->name.c_str(), given.priority,           nullptr, given.dtypes, own(given.forward),
        own(given.backward), given.changes_scores != 0};
    RUEDA_RETURN_IF_ERROR(rueda::c_abi::kernels().add(&added->kernel));
    [[maybe_unused]] const AddedKernel* registrys = added.release();  // from now on
    return {};
  });
}

int32_t rueda_attention_use_kernel(const char* name, rueda_error* error) {
  return rueda::c_abi::guarded(
      error, [&] { return rueda::c_abi::kernels().use(name == nullptr ? "auto" : name); });
}

int32_t rueda_attention_kernel_for(int32_t q_dtype, int32_t k_dtype, int64_t head_dim, char* name,
                                   size_t name_size, char* why, size_t why_size,
                                   rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    const attention::KernelNeeds needs{static_cast<rueda::DType>(q_dtype),
                                       static_cast<rueda::DType>(k_dtype), head_dim};
    RUEDA_RETURN_IF_ERROR(local_engine().status());  // the setting
    RUEDA_RETURN_IF_ERROR(rueda::c_abi::kernels().check(needs));
    const attention::KernelChoice choice = rueda::c_abi::kernels().choose(needs);
    const auto fill = [](const std::string& text, char* to, size_t size) {
      if (to != nullptr && size > 0) std::snprintf(to, size, "%s", text.c_str());
    };
    fill(choice.kernel->name, name, name_size);
    fill(choice.why, why, why_size);
    return {};
  });
}

}  // extern "C"
