// The members of a custom call "rueda_collective".
#pragma once

#include <memory>
#include <vector>

#include "bindings/calls/calls.h"
#include "bindings/xla/frame.h"
#include "bindings/xla/joint.h"

namespace rueda::xla {

// From the attribute "members" and the buffers, in host memory; an error if they do not fit.
XLA_FFI_Error* read_members(const XLA_FFI_CallFrame* frame, const Attributes& attributes,
                            const std::shared_ptr<Joint>& joint,
                            std::vector<std::unique_ptr<calls::Call>>* members);

}  // namespace rueda::xla
