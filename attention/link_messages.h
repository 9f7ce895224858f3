// The messages of a program over a link: of the host's memory, or of a GPU's (Link::on_device).
#pragma once

#include <vector>

#include "attention/backend.h"
#include "attention/link.h"

namespace rueda::attention {

class LinkMessages final : public Messages {
 public:
  // Borrows all three.
  LinkMessages(const AttentionPlan& plan, const Program& program, Link* link)
      : plan_(plan), program_(program), link_(link), messages_(program.list.size()) {}
  Status begin(int number, const Instruction& one, std::byte* memory, int64_t bytes) override;
  Result<bool> complete(int number, const Instruction& one) override;
  Status check() override { return link_->check_aborted(); }

 private:
  Status named(const Status& status, const Instruction& one) const;

  const AttentionPlan& plan_;
  const Program& program_;
  Link* const link_;
  std::vector<Link::Message> messages_;  // by instruction
};

}  // namespace rueda::attention
