#include "launcher/output/rank_output.h"

namespace rueda::launcher {
RankOutput::RankOutput(Rank rank, Console* console)
    : rank_(rank),
      console_(console),
      splitters_{LineSplitter(console->keeps_redraws(Stream::kStdout)),
                 LineSplitter(console->keeps_redraws(Stream::kStderr))} {}

LineSplitter::Emit RankOutput::printer(Stream stream) {
  return [this, stream](const Piece& piece) {
    if (stream == Stream::kStderr && piece.end == '\n') words_.add(piece.text);
    console_->print(rank_, stream, piece);
  };
}

void RankOutput::take(Stream stream, std::string_view bytes) {
  if (copies_ != nullptr) copies_->write(rank_, stream, bytes);
  splitters_[static_cast<int>(stream)].feed(bytes, printer(stream));
}

void RankOutput::end(Stream stream) {
  ended_[static_cast<int>(stream)] = true;
  splitters_[static_cast<int>(stream)].finish(printer(stream));
}

}  // namespace rueda::launcher
