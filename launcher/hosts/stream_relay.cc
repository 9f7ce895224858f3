#include "launcher/hosts/stream_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

namespace rueda::launcher {

void StreamRelay::add(MemberId member, UniqueFd fd) {
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  streams_[member] = {std::move(fd), "", false};
}

void StreamRelay::add_to_poll(std::vector<pollfd>* fds) const {
  for (const auto& [member, stream] : streams_) {
    const int events =
        (stream.kept.size() < kMaxKept ? POLLIN : 0) | (stream.kept.empty() ? 0 : POLLOUT);
    fds->push_back({stream.fd.get(), static_cast<short>(events), 0});
  }
}

// False when nobody reads at the other end any more.
bool StreamRelay::write_kept(Stream* stream) {
  size_t done = 0;
  while (done < stream->kept.size()) {
    const ssize_t wrote = send(stream->fd.get(), stream->kept.data() + done,
                               stream->kept.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) break;
    if (wrote <= 0) return false;
    done += static_cast<size_t>(wrote);
  }
  stream->kept.erase(0, done);
  return !(stream->ending && stream->kept.empty());
}

void StreamRelay::pump(const Carry& carry) {
  std::string bytes(kPiece, '\0');
  for (auto it = streams_.begin(); it != streams_.end();) {
    Stream& stream = it->second;
    bool open = write_kept(&stream);
    if (open && stream.kept.size() < kMaxKept) {
      const ssize_t got = recv(stream.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got > 0) carry(it->first, {bytes.data(), static_cast<size_t>(got)}, false);
      open = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
    }
    if (!open && !stream.ending) carry(it->first, {}, true);
    it = open ? std::next(it) : streams_.erase(it);
  }
}

void StreamRelay::deliver(MemberId member, std::string_view bytes, bool end) {
  const auto found = streams_.find(member);
  if (found == streams_.end()) return;
  found->second.kept += bytes;
  found->second.ending = found->second.ending || end;
  if (!write_kept(&found->second)) streams_.erase(found);
}

}  // namespace rueda::launcher
