// Device steps: what the kernels of a GPU are told of an instruction beside its buffers: which
// parts of which tensors lie where in its message, and which pieces of attention it computes. Pure
// integers, made once for a program.
//
// On a GPU numbers of a row and head (log-sum-exps and the like) lie as (batch, heads, rows), rows
// of head_dim elements as (batch, rows, heads, head_dim). A message has first the former, then the
// latter, each part dense; of int8 the float32 scales of all parts come before them, as (batch,
// rows, heads). Sizes are those of the host's messages.
#pragma once

#include <vector>

#include "attention/pieces.h"
#include "attention/program.h"

namespace rueda::attention {

// Rows and heads of one tensor in a message.
struct MessagePart {
  Role role = Role::kMessage;     // of the tensor
  int set = -1;                   // of the ring's rows; -1: of an exchange of heads
  int64_t head = 0, heads = 0;    // of the tensor
  std::vector<Run> rows;          // of the tensor, one run after another
  int64_t offset = 0, bytes = 0;  // in the message
  int64_t scales = -1;            // offset of int8's scales
  bool add = false;               // added to the tensor, not copied
};

struct DeviceStep {
  std::vector<MessagePart> message, reply;
  std::vector<DevicePiece> pieces;
  std::vector<int> sets;  // of each piece: whose rows they are in the message; -1: own rows
};

DeviceStep device_step(const AttentionPlan& plan, const Program& program, const Instruction& one);

}  // namespace rueda::attention
