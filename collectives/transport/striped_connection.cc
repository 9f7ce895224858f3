#include "collectives/transport/striped_connection.h"

#include <algorithm>
#include <array>

#include "collectives/base/check.h"

namespace rueda::transport {

StripedConnection::StripedConnection(std::vector<std::unique_ptr<TcpConnection>> streams)
    : streams_(std::move(streams)) {
  RUEDA_CHECK(!streams_.empty(), "a striped connection needs a connection");
  for (size_t i = 1; i < streams_.size(); ++i) streams_[i]->set_reading(false);
}

bool StripedConnection::pass(Place* place, size_t bytes) const {
  place->left -= bytes;
  if (place->left > 0) return false;
  place->left = kStripeBytes;
  place->stream = (place->stream + 1) % streams_.size();
  return true;
}

Result<size_t> StripedConnection::write(std::span<const ByteView> pieces) {
  size_t total = 0;
  std::array<ByteView, 4> part;
  while (true) {
    // What is left of the pieces, as far as the stripe goes.
    size_t skip = total;
    size_t room = out_.left;
    size_t count = 0;
    for (const ByteView piece : pieces) {
      const size_t skipped = std::min(skip, piece.size());
      skip -= skipped;
      const size_t length = std::min(piece.size() - skipped, room);
      if (length == 0) continue;
      if (count == part.size()) break;
      part[count++] = piece.subspan(skipped, length);
      room -= length;
    }
    if (count == 0) return total;
    const size_t offered = out_.left - room;
    TcpConnection& stream = *streams_[out_.stream];
    RUEDA_ASSIGN_OR_RETURN(const size_t written, stream.write(std::span(part).first(count)));
    total += written;
    if (pass(&out_, written)) stream.set_blocked(false);
    if (written < offered) return total;
  }
}

Result<size_t> StripedConnection::read(ByteSpan into) {
  if (into.empty()) return size_t{0};
  TcpConnection& stream = *streams_[in_.stream];
  RUEDA_ASSIGN_OR_RETURN(const size_t count,
                         stream.read(into.first(std::min(into.size(), in_.left))));
  if (pass(&in_, count) && streams_.size() > 1) {
    stream.set_reading(false);
    streams_[in_.stream]->set_reading(true);
  }
  return count;
}

void StripedConnection::set_blocked(bool blocked) { streams_[out_.stream]->set_blocked(blocked); }

void StripedConnection::finish() {
  for (const auto& stream : streams_) stream->finish();
}

bool StripedConnection::has_arrived() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return stream->has_arrived(); });
}

void StripedConnection::unwatch() {
  for (const auto& stream : streams_) stream->unwatch();
}

}  // namespace rueda::transport
