// One tensor's life in Horovod's dialect, each tensor being a "process":
//
//   B NEGOTIATE_ALLREDUCE   submitted here, or first heard of
//     X "0", X "1", ...     zero length: this rank has it ready (not where a step plan runs)
//   E
//   B ALLREDUCE             handed to the communicator
//     B QUEUE E  B MEMCPY_IN_FUSION_BUFFER E  B GLOO_ALLREDUCE E  B MEMCPY_OUT_FUSION_BUFFER E
//   E {dtype, shape}
//
// Phases of one level do not overlap in this dialect; where ours do (chunks of one batch are packed
// while others are unpacked), a phase ends where the next one begins. GLOO_ is the prefix that
// tools know for collectives of host memory.
#include <algorithm>
#include <cctype>
#include <map>
#include <unordered_map>
#include <utility>

#include "runtime/observe/timeline/json_array_file.h"
#include "runtime/observe/timeline/json_line.h"
#include "runtime/observe/timeline/layout.h"

namespace rueda::timeline {
namespace {

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

class HorovodLayout final : public Layout {
 public:
  HorovodLayout(const Labels* labels, Origin origin)
      : labels_(labels), origin_(std::move(origin)) {}

  void open(std::string* out) override {
    line(out,
         R"("name":"process_name","ph":"M","pid":0,"args":{{"name":{},)"
         R"("start_time_since_epoch_in_micros":{}}})",
         json_quoted(origin_.name), origin_.epoch_micros);
    line(out, R"("name":"process_sort_index","ph":"M","pid":0,"args":{{"sort_index":0}})");
    std::map<int, std::string> names;  // of rows in an earlier file
    for (const auto& [name, tensor] : tensors_) names[tensor.pid] = name;
    for (const auto& [pid, name] : names) describe(pid, name, out);
  }

  void add(const Event& event, std::string* out) override {
    switch (event.what) {
      case Event::What::kBatch: batch_ = event.batch; break;
      case Event::What::kMember:
        if (batch_.begun >= origin_.start) add_tensor(event, out);
        break;
      case Event::What::kArrival: {
        Tensor& tensor = tensor_of(event.label, out);
        auto& next = tensor.arrivals[event.rank];
        if (event.time >= origin_.start) next.push_back(event.time);
        break;
      }
      case Event::What::kMark:
        if (event.time >= origin_.start) add_mark(event, out);
        break;
      case Event::What::kCycle:
        if (event.time >= origin_.start) {
          line(out, R"("name":"CYCLE_START","ph":"i","pid":0,"tid":0,"ts":{},"s":"g")",
               micros(event.time));
        }
    }
  }

  void lost(uint64_t count, Nanos now, std::string* out) override {
    line(out, R"("name":"{} events were lost","ph":"i","pid":0,"tid":0,"ts":{},"s":"g")", count,
         micros(now));
  }

 private:
  struct Tensor {
    int pid = 0;
    int depth = 0;  // of marks
    Nanos ended = 0;
    std::map<Rank, std::vector<Nanos>> arrivals;  // not shown yet
  };

  int64_t micros(Nanos time) const { return std::max<Nanos>(0, time - origin_.start) / 1000; }
  void begin(int pid, const std::string& name, Nanos time, std::string* out) {
    line(out, R"("name":{},"ph":"B","pid":{},"tid":0,"ts":{})", json_quoted(name), pid,
         micros(time));
  }
  void end(int pid, Nanos time, std::string* out) {
    line(out, R"("ph":"E","pid":{},"tid":0,"ts":{})", pid, micros(time));
  }

  static void describe(int pid, const std::string& name, std::string* out) {
    line(out, R"("name":"process_name","ph":"M","pid":{},"args":{{"name":{}}})", pid,
         json_quoted(name));
    line(out, R"("name":"process_sort_index","ph":"M","pid":{0},"args":{{"sort_index":{0}}})", pid);
  }

  Tensor& tensor_of(LabelId id, std::string* out) {
    const std::string name = labels_->get(id).name;
    const auto [it, is_new] = tensors_.try_emplace(name);
    if (is_new) {
      it->second.pid = static_cast<int>(tensors_.size());
      const int pid = it->second.pid;
      describe(pid, name, out);
    }
    return it->second;
  }

  void add_tensor(const Event& event, std::string* out) {
    const Label label = labels_->get(event.label);
    Tensor& tensor = tensor_of(event.label, out);
    const std::string op = upper(name_of(batch_.kind));
    // The last time before the agreement that each rank told of it. What came later is of the next
    // round, what came before of one that ended with an error.
    std::map<Nanos, std::vector<Rank>> ready;
    for (auto& [rank, times] : tensor.arrivals) {
      const auto later = std::upper_bound(times.begin(), times.end(), batch_.begun);
      if (later != times.begin()) ready[*(later - 1)].push_back(rank);
      times.erase(times.begin(), later);
    }
    Nanos from = event.member.taken == 0 ? batch_.begun : event.member.taken;
    if (!ready.empty()) from = std::min(from, ready.begin()->first);
    from = std::min(std::max(from, tensor.ended), batch_.begun);
    begin(tensor.pid, "NEGOTIATE_" + op, from, out);
    for (const auto& [time, ranks] : ready) {
      for (const Rank rank : ranks) {
        line(out, R"("name":"{}","ph":"X","pid":{},"tid":0,"ts":{},"dur":0)", rank, tensor.pid,
             micros(std::max(time, from)));
      }
    }
    end(tensor.pid, batch_.begun, out);

    begin(tensor.pid, op, batch_.begun, out);
    const StageTimes& stages = batch_.stages;
    Nanos cursor = batch_.begun;
    const auto phase = [&](const std::string& name, Nanos b, Nanos e) {
      b = std::max(b, cursor);
      e = std::min(e, batch_.ended);
      if (e <= b) return;
      begin(tensor.pid, name, b, out);
      end(tensor.pid, e, out);
      cursor = e;
    };
    const Nanos wire = stages.wire.begin;
    const Nanos first = stages.packed.begin != 0 ? stages.packed.begin : wire;
    if (first != 0) phase("QUEUE", batch_.begun, first);
    phase("MEMCPY_IN_FUSION_BUFFER", stages.packed.begin,
          wire == 0 ? stages.packed.end : std::min(stages.packed.end, wire));
    const std::string moved = batch_.kind == CollectiveKind::kBroadcast ? "BCAST" : op;
    if (wire != 0) phase("GLOO_" + moved, wire, stages.wire.end);
    phase("MEMCPY_OUT_FUSION_BUFFER", stages.unpacked.begin, stages.unpacked.end);
    line(out, R"("ph":"E","pid":{},"tid":0,"ts":{},"args":{{"dtype":{},"shape":{}}})", tensor.pid,
         micros(batch_.ended), json_quoted(label.dtype), json_quoted(label.shape));
    tensor.ended = batch_.ended;
  }

  void add_mark(const Event& event, std::string* out) {
    Tensor& row = tensor_of(event.label, out);
    const std::string name = labels_->get(event.label).name;
    if (event.mark == Mark::kBegin) {
      begin(row.pid, name, event.time, out);
      ++row.depth;
    } else if (event.mark == Mark::kEnd) {
      if (row.depth == 0) return;  // begun before the start
      end(row.pid, event.time, out);
      --row.depth;
    } else {
      line(out, R"("name":{},"ph":"i","pid":{},"tid":0,"ts":{},"s":"p")", json_quoted(name),
           row.pid, micros(event.time));
    }
  }

  const Labels* labels_;
  Origin origin_;
  BatchRun batch_;
  std::unordered_map<std::string, Tensor> tensors_;  // and marks
};

}  // namespace

std::unique_ptr<Layout> horovod_layout(const Labels* labels, Origin origin) {
  return std::make_unique<HorovodLayout>(labels, std::move(origin));
}

}  // namespace rueda::timeline
