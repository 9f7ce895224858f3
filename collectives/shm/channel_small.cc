// Operations whose data travels in the post: one exchange, and every rank does all of the work for
// itself.
#include "collectives/base/rounding.h"
#include "collectives/desc/copy_bytes.h"
#include "collectives/shm/channel_state.h"

namespace rueda::shm {
namespace {

// Bytes that kernels combine at a time, at most.
constexpr int64_t kVectors = 256;
static_assert(kGathered % kVectors == 0);

// This rank's contribution, end to end.
void pack_payload(const ChannelOp& op, size_t me, size_t size, std::byte* to) {
  const ChannelOp::Progress& p = op.progress();
  switch (op.desc().kind) {
    case CollectiveKind::kAllreduce:
      for (const Part& part : op.tensors()) {
        kernels::scaled_copy(op.desc().dtype, part.in, to, static_cast<size_t>(part.count),
                             op.desc().scaling.prescale);
        to += part.count * p.element;
      }
      break;
    case CollectiveKind::kReducescatter:
      kernels::scaled_copy(op.desc().dtype, op.tensors()[0].in, to,
                           static_cast<size_t>(p.begins.back()), op.desc().scaling.prescale);
      break;
    case CollectiveKind::kBroadcast:
      if (static_cast<size_t>(op.desc().root) != me) break;
      for (const Part& part : op.tensors()) {
        copy_bytes(to, part.in, part.count);
        to += part.count;
      }
      break;
    case CollectiveKind::kAllgather:
      for (size_t i = 0; i < op.tensors().size(); ++i) {
        const int64_t bytes = op.desc().counts[i * size + me];
        copy_bytes(to, op.tensors()[i].in, bytes);
        to += bytes;
      }
      break;
    case CollectiveKind::kBarrier: break;
    default:  // alltoall
      copy_bytes(to, op.tensors()[0].in, static_cast<int64_t>(p.payload[me]));
  }
}

}  // namespace

void Channel::State::enter_small(ChannelOp* op) {
  const ChannelOp::Progress& p = op->progress();
  host::PostCell* own = cell(me, p.number);
  const uint64_t number = sequence(p.number);
  if (p.size == Size::kBlock) {
    pack_payload(*op, me, size, own->block);
    post::write(own, number, nullptr, 0);
  } else if (p.payload[me] <= post::kLinePayload) {
    pack_payload(*op, me, size, own->lines[0].payload);
    own->lines[0].sequence.store(number, std::memory_order_release);
  } else {
    pack_payload(*op, me, size, fused.data());
    post::write(own, number, fused.data(), p.payload[me]);
  }
}

// True once all ranks' contributions can be read at views.
bool Channel::State::read_small(ChannelOp* op) {
  ChannelOp::Progress& p = op->progress();
  const bool in_lines = p.size == Size::kInline;
  // The own contribution is read where it came from, if it can be: what was just written is slow to
  // read while its line comes from another core.
  const bool as_it_came = op->desc().kind == CollectiveKind::kAllreduce &&
                          op->tensors().size() == 1 && op->desc().scaling.prescale == 1.0;
  for (; p.ready < size; ++p.ready) {
    const host::PostCell* there = cell(p.ready, p.number);
    const size_t bytes = p.payload[p.ready];
    const bool scattered = in_lines && bytes > post::kLinePayload;
    if (p.ready == me && as_it_came && !scattered) {
      views[me] = op->tensors()[0].in;
      continue;
    }
    if (!post::is_there(there, sequence(p.number), in_lines ? bytes : 0)) return false;
    if (!scattered) {
      views[p.ready] = in_lines ? there->lines[0].payload : there->block;
    } else {
      std::byte* to = gathered.data() + p.ready * static_cast<size_t>(kGathered);
      post::read(there, to, bytes);
      views[p.ready] = to;
    }
  }
  return true;
}

void Channel::State::consume(ChannelOp* op) {
  const ChannelOp::Progress& p = op->progress();
  switch (op->desc().kind) {
    case CollectiveKind::kAllreduce: {
      // Several tensors are combined as one, then copied out. So is what has been gathered from
      // lines: combining its padding too spares the kernel the slow way of a broken last vector.
      const bool padded = p.size == Size::kInline && p.payload[0] > post::kLinePayload;
      const bool straight = op->tensors().size() == 1 && !padded;
      const int64_t total = p.begins.back() * p.element;
      const int64_t length = padded ? round_up(total, kVectors) : total;
      std::byte* out = straight ? op->tensors()[0].out : fused.data();
      kernels::reduce(op->desc().dtype, op->desc().op, views, out,
                      static_cast<size_t>(length / p.element), op->desc().scaling.finish);
      if (straight) break;
      for (const Part& part : op->tensors()) {
        copy_bytes(part.out, out, part.count * p.element);
        out += part.count * p.element;
      }
      break;
    }
    case CollectiveKind::kReducescatter:
      for (size_t rank = 0; rank < size; ++rank)
        inputs[rank] = views[rank] + p.begins[me] * p.element;
      kernels::reduce(op->desc().dtype, op->desc().op, inputs, op->tensors()[0].out,
                      static_cast<size_t>(op->desc().counts[me]), op->desc().scaling.finish);
      break;
    case CollectiveKind::kBroadcast: {
      const std::byte* from = views[static_cast<size_t>(op->desc().root)];
      for (const Part& part : op->tensors()) {
        copy_bytes(part.out, from, part.count);
        from += part.count;
      }
      break;
    }
    case CollectiveKind::kAllgather:
      for (size_t i = 0; i < op->tensors().size(); ++i) {
        std::byte* out = op->tensors()[i].out;
        for (size_t rank = 0; rank < size; ++rank) {
          const int64_t bytes = op->desc().counts[i * size + rank];
          copy_bytes(out, views[rank], bytes);
          out += bytes;
          views[rank] += bytes;
        }
      }
      break;
    case CollectiveKind::kBarrier: break;
    default: {  // alltoall
      std::byte* out = op->tensors()[0].out;
      for (size_t rank = 0; rank < size; ++rank) {
        const int64_t* row = &op->desc().counts[rank * size];
        const std::byte* from = views[rank];
        for (size_t to = 0; to < me; ++to) from += row[to];
        copy_bytes(out, from, row[me]);
        out += row[me];
      }
    }
  }
}

}  // namespace rueda::shm
